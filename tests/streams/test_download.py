"""Downloads end with the verified file or with nothing, whatever the server does; served by a real server on this machine."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from afaf.errors import DataError, WriteError
from afaf.files.lock import FolderLock
from afaf.streams import download as module
from afaf.streams.download import INCOMING, download, get
from afaf.streams.sources import SOURCES, Remote, Source
from afaf.streams.sources.verify import inspect
from streams import makers


@dataclass
class Server:
    """Serves `files`, and misbehaves as told."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True  # answers requests for a part of a file
    tag: str = '"one"'
    break_after: list[int] = field(default_factory=list)  # bytes of body after which the next answers break off
    pause_after: int | None = None  # bytes of body after which an answer waits until `go_on`
    go_on: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range of every request


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            server.asked.append((self.path, wanted))
            content = server.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
            if self.headers.get("If-Range") not in (None, server.tag):
                start = 0
            if start >= len(content) > 0:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            if server.tag:
                self.send_header("ETag", server.tag)
            self.end_headers()
            self.send_body(content[start:])

        def send_body(self, body: bytes) -> None:
            if server.break_after:
                self.wfile.write(body[: server.break_after.pop(0)])
                self.wfile.flush()
                self.close_connection = True
                return
            if server.pause_after is not None:
                self.wfile.write(body[: server.pause_after])
                self.wfile.flush()
                body = body[server.pause_after :]
                server.go_on.wait(20)
            try:
                self.wfile.write(body)
            except OSError:  # the client has gone
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    served = Server()
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler(served))
    served.url = f"http://127.0.0.1:{running.server_address[1]}"
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield served
    served.go_on.set()
    running.shutdown()
    running.server_close()
    thread.join()


CONTENT = makers.pixels(700_001).tobytes()


def remote(server: Server, content: bytes = CONTENT, *, md5: bool = True, paths: tuple[str, ...] = ("/file",)) -> Remote:
    server.files.setdefault(paths[-1], content)
    digest = hashlib.md5(content).hexdigest() if md5 else None
    return Remote("file", tuple(server.url + path for path in paths), len(content), digest)


def nothing_left(folder: Path) -> bool:
    return not list(folder.iterdir())


def test_a_file_arrives_whole_and_alone(server: Server, tmp_path: Path) -> None:
    steps = []
    download(remote(server), tmp_path / "target", lambda *step: steps.append(step))
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert steps[0] == ("file", 0, len(CONTENT))
    assert steps[-1] == ("file", len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("md5", [True, False])
def test_a_broken_download_goes_on_where_it_broke(server: Server, tmp_path: Path, md5: bool) -> None:
    server.break_after = [1000, 300_000, 5]
    download(remote(server, md5=md5), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, "bytes=1000-", "bytes=301000-", "bytes=301005-"]


def test_a_download_that_gave_up_is_resumed_by_the_next(server: Server, tmp_path: Path) -> None:
    server.break_after = [5000, 0, 0, 0]
    with pytest.raises(DataError, match=r"could not download file:\n.*5000 of 700001 bytes"):
        download(remote(server), tmp_path / "target")
    assert not (tmp_path / "target").exists()
    server.asked.clear()
    download(remote(server), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert server.asked == [("/file", "bytes=5000-")]


def test_a_server_without_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    server.ranges, server.break_after = False, [400_000]
    download(remote(server), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT


def test_a_file_that_changed_on_the_server_is_not_mixed(server: Server, tmp_path: Path) -> None:
    server.break_after = [5000, 0, 0, 0]
    other = makers.pixels(700_001, seed=1).tobytes()
    with pytest.raises(DataError):
        download(remote(server, md5=False), tmp_path / "target")
    server.files["/file"], server.tag = other, '"two"'
    download(remote(server, md5=False), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == other


def test_pieces_nothing_holds_together_are_not_joined(server: Server, tmp_path: Path) -> None:
    server.tag, server.break_after = "", [5000]  # neither a version nor a checksum
    download(remote(server, md5=False), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, None]


def test_a_part_that_is_already_whole_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / "target.part").write_bytes(CONTENT)
    download(remote(server), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT


def test_a_part_that_is_too_long_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "target.part").write_bytes(CONTENT + b"more")
    download(remote(server), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT


def test_a_wrong_checksum_keeps_nothing(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT[:-1] + b"!"
    with pytest.raises(DataError, match="wrong checksum"):
        download(remote(server), tmp_path / "target")
    assert nothing_left(tmp_path)


def test_the_next_address_is_asked(server: Server, tmp_path: Path) -> None:
    server.files["/spoiled"] = b"x" * len(CONTENT)
    download(remote(server, paths=("/gone", "/spoiled", "/file")), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == ["/gone", "/spoiled", "/file"]


def test_a_mirror_is_asked_first(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFAF_MIRROR", server.url + "/mirror/")
    server.files["/mirror/file"] = CONTENT
    download(remote(server), tmp_path / "target")
    assert server.asked == [("/mirror/file", None)]


def test_far_more_than_the_published_file_is_refused(server: Server, tmp_path: Path) -> None:
    small = replace(remote(server), size=10_000)
    with pytest.raises(DataError, match="offers 700001 bytes, but the published file has 10000"):
        download(small, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("md5", [True, False])
def test_endless_answers_are_cut_off_and_deleted(server: Server, tmp_path: Path, md5: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_agreed_start", lambda response, asked: (0, None))  # as if the server named no length
    small = replace(remote(server, md5=md5), size=100_000)
    with pytest.raises(DataError, match="sends more than the published file has"):
        download(small, tmp_path / "target")
    assert nothing_left(tmp_path)


def test_a_page_instead_of_the_file_does_not_spoil_what_arrived(server: Server, tmp_path: Path) -> None:
    server.break_after = [400_000, 0, 0, 0]
    with pytest.raises(DataError):
        download(remote(server), tmp_path / "target")
    server.files["/file"], server.ranges = b"<html>please log in</html>", False
    with pytest.raises(DataError, match="offers 26 bytes"):
        download(remote(server), tmp_path / "target")
    server.files["/file"], server.ranges = CONTENT, True
    server.asked.clear()
    download(remote(server), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert server.asked == [("/file", "bytes=400000-")]


def test_no_server_at_all_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    with pytest.raises(DataError, match=r"could not download x:\n  http://127.0.0.1:9/x: .*\n.*AFAF_MIRROR"):
        download(Remote("x", ("http://127.0.0.1:9/x",), 10), tmp_path / "target")


@pytest.mark.parametrize("mirror", ["files.example.org/sets", "/mnt/sets", "http://fil\u00e9s.example/s\u00e9ts", "http://[::1/sets"])
def test_a_mirror_that_is_no_address_is_passed_over(mirror: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setenv("AFAF_MIRROR", mirror)
    download(remote(server), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT
    with pytest.raises(DataError, match=r"could not download file:\n  \S+/file: .+\n  http\S+/gone: Not Found"):
        download(replace(remote(server), urls=(server.url + "/gone",)), tmp_path / "target")


def test_a_full_disk_is_told_at_once_and_no_other_address_is_asked(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_copy", copy)
    with pytest.raises(WriteError, match=r"cannot write .*target\.part: the disk is full; free some space"):
        download(remote(server, paths=("/file", "/file")), tmp_path / "target")
    assert len(server.asked) == 1


# --- whole datasets


@pytest.fixture
def letters(server: Server, tmp_path: Path) -> Source:
    """notMNIST, as if 2,000 letters had been published on the server."""
    made = tmp_path / "made"
    made.mkdir()
    makers.tar_gz(made / "notMNIST_small.tar.gz", makers.letters(200))
    server.files["/letters"] = (made / "notMNIST_small.tar.gz").read_bytes()
    published = makers.as_published(SOURCES["notmnist"], made)
    remote = Remote("notMNIST_small.tar.gz", (server.url + "/letters",), len(server.files["/letters"]))
    return replace(published, remotes=(remote,))


@pytest.fixture
def cifar(server: Server, tmp_path: Path) -> Source:
    """CIFAR-10, as if 120 images had been published in an archive on the server."""
    made = tmp_path / "made"
    makers.cifar10(made)
    archive = made / "archive.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(made / "cifar-10-batches-bin", "cifar-10-batches-bin")
    return published_cifar(server, made, archive.read_bytes())


def published_cifar(server: Server, made: Path, archive: bytes, md5: bool = True) -> Source:
    server.files["/cifar.tar.gz"] = archive
    digest = hashlib.md5(archive).hexdigest() if md5 else None
    remote = Remote("cifar.tar.gz", (server.url + "/cifar.tar.gz",), len(archive), digest, unpack=True)
    return replace(makers.as_published(SOURCES["cifar10"], made), remotes=(remote,))


@pytest.fixture
def digits(server: Server, tmp_path: Path) -> Source:
    """MNIST, as four files."""
    made = tmp_path / "made"
    makers.idx(made / "mnist")
    source = makers.as_published(SOURCES["mnist"], made)
    remotes = []
    for path in sorted((made / "mnist").iterdir()):
        server.files[f"/{path.name}"] = content = path.read_bytes()
        remotes.append(Remote(f"mnist/{path.name}", (f"{server.url}/{path.name}",), len(content), hashlib.md5(content).hexdigest()))
    return replace(source, remotes=tuple(remotes))


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["letters", "cifar", "digits"])
def test_get_puts_a_verified_dataset_in_place(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source, data = request.getfixturevalue(name), tmp_path / "data"
    found = get(source, data)
    assert found.state == inspect(source, data).state == "verified"
    made = [file for file in files(tmp_path / "made") if file != "archive.tar.gz"]
    assert files(data) == made
    assert not (data / INCOMING).exists()


def test_get_again_replaces_damage_and_leaves_other_files(cifar: Source, tmp_path: Path) -> None:
    data = tmp_path / "data"
    get(cifar, data)
    (data / "cifar-10-batches-bin/notes.txt").write_text("mine")
    (data / "cifar-10-batches-bin/data_batch_2.bin").write_bytes(b"damaged")
    assert inspect(cifar, data).state == "damaged"
    get(cifar, data)
    assert inspect(cifar, data).state == "verified"
    assert (data / "cifar-10-batches-bin/notes.txt").read_text() == "mine"


def test_what_is_not_the_dataset_is_deleted_and_what_was_there_stays(letters: Source, server: Server, tmp_path: Path) -> None:
    """No checksum is published for notMNIST: the decoded images decide."""
    data = tmp_path / "data"
    get(letters, data)
    before = (data / "notMNIST_small.tar.gz").read_bytes()
    other = tmp_path / "other.tar.gz"
    makers.tar_gz(other, makers.letters(200, seed=5))
    for content in (other.read_bytes(), b"<html>gone</html>", before[: len(before) // 2], gzip.compress(b"no tar")):
        server.files["/letters"] = content
        with pytest.raises(DataError, match="notMNIST"):
            get(letters, data)
        assert files(data) == ["notMNIST_small.tar.gz"]
        assert (data / "notMNIST_small.tar.gz").read_bytes() == before


def hostile(kind: bytes, name: str, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "info",
    [
        hostile(tarfile.REGTYPE, "../escaped"),
        hostile(tarfile.REGTYPE, "/tmp/escaped"),
        hostile(tarfile.REGTYPE, "cifar-10-batches-bin/../../../../escaped"),
        hostile(tarfile.SYMTYPE, "cifar-10-batches-bin/data_batch_1.bin", "/etc/passwd"),
        hostile(tarfile.SYMTYPE, "cifar-10-batches-bin", ".."),
        hostile(tarfile.LNKTYPE, "cifar-10-batches-bin/x", "../../x"),
    ],
)
def test_hostile_archives_write_nothing_outside(info: tarfile.TarInfo, cifar: Source, server: Server, tmp_path: Path) -> None:
    archive = tmp_path / "hostile.tar.gz"
    makers.tar_gz(archive, {"cifar-10-batches-bin/data_batch_1.bin": b"x"}, [info])
    source = published_cifar(server, tmp_path / "made", archive.read_bytes())
    before = set(tmp_path.rglob("*"))
    data = tmp_path / "deep" / "data"
    with pytest.raises(DataError, match="do not trust this archive"):
        get(source, data)
    assert [path for path in set(tmp_path.rglob("*")) - before if not path.is_dir()] == []


def test_only_the_datasets_own_files_are_unpacked(cifar: Source, server: Server, tmp_path: Path) -> None:
    archive = tmp_path / "more.tar.gz"
    own = {f"cifar-10-batches-bin/{path.name}": path.read_bytes() for path in (tmp_path / "made/cifar-10-batches-bin").iterdir()}
    makers.tar_gz(archive, {"mnist/surprise": b"x", **own, "readme.txt": b"x", ".": b"x"})
    data = tmp_path / "data"
    get(published_cifar(server, tmp_path / "made", archive.read_bytes()), data)
    assert files(data) == sorted(own)


def test_an_archive_put_there_by_hand_is_used(cifar: Source, server: Server, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / INCOMING / "cifar10").mkdir(parents=True)
    (data / INCOMING / "cifar10" / "cifar.tar.gz").write_bytes(server.files["/cifar.tar.gz"])
    get(cifar, data)
    assert server.asked == []
    assert inspect(cifar, data).state == "verified"


def test_a_failed_download_leaves_what_arrived_and_nothing_else(cifar: Source, server: Server, tmp_path: Path) -> None:
    data, content = tmp_path / "data", server.files.pop("/cifar.tar.gz")
    with pytest.raises(DataError, match="could not download"):
        get(cifar, data)
    assert list(data.iterdir()) == []
    server.files["/cifar.tar.gz"], server.break_after = content, [1000, 0, 0, 0]
    with pytest.raises(DataError, match="1000 of"):
        get(cifar, data)
    assert [file.rpartition("/")[2] for file in files(data)] == ["cifar.tar.gz.part", "cifar.tar.gz.part.json"]
    server.asked.clear()
    assert get(cifar, data).state == "verified"
    assert server.asked == [("/cifar.tar.gz", "bytes=1000-")]


def test_a_folder_that_cannot_be_made_is_one_error(cifar: Source, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WriteError, match="file/data"):
        get(cifar, tmp_path / "file" / "data")


def test_what_stands_in_the_way_of_the_lock_is_one_error(cifar: Source, tmp_path: Path) -> None:
    (tmp_path / "data" / INCOMING / cifar.name / ".lock").mkdir(parents=True)
    with pytest.raises(WriteError, match=cifar.name):
        get(cifar, tmp_path / "data")


CHILD = """
import sys
from dataclasses import replace
from pathlib import Path
from afaf.streams.download import download
from afaf.streams.sources import Remote
download(Remote("file", (sys.argv[1],), int(sys.argv[2]), sys.argv[3]), Path(sys.argv[4]))
"""


def test_a_killed_process_is_resumed_by_the_next(server: Server, tmp_path: Path) -> None:
    content = makers.pixels(3_000_000).tobytes()
    asked, target = remote(server, content), tmp_path / "target"
    server.pause_after = 2_000_000
    arguments = [asked.urls[0], str(asked.size), str(asked.md5), str(target)]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    part = tmp_path / "target.part"
    try:
        while child.poll() is None and not (part.exists() and part.stat().st_size >= 1_000_000):
            time.sleep(0.02)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    arrived = part.stat().st_size
    assert 0 < arrived < len(content)
    assert not target.exists()
    server.pause_after = None
    server.go_on.set()
    download(asked, target)
    assert target.read_bytes() == content
    assert server.asked[-1] == ("/file", f"bytes={arrived}-")


def test_two_processes_do_not_write_the_same_download(cifar: Source, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    data = tmp_path / "data"
    (data / INCOMING / "cifar10").mkdir(parents=True)
    with module._locked(data / INCOMING / "cifar10"), pytest.raises(DataError, match="another process is downloading"):
        get(cifar, data)
    get(cifar, data)


def test_the_lock_of_the_next_download_survives_the_end_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one takes the lock at the moment it is released."""
    pytest.importorskip("fcntl")
    release, following = FolderLock.release, FolderLock(tmp_path)

    def release_and_go_on(lock: FolderLock) -> None:
        release(lock)
        monkeypatch.undo()
        following.take()

    with module._locked(tmp_path):
        monkeypatch.setattr(FolderLock, "release", release_and_go_on)
    with pytest.raises(DataError, match="another process is downloading"), module._locked(tmp_path):
        pass
    following.release()


@pytest.mark.parametrize("link", [".incoming", ".incoming/NAME"])
def test_a_link_in_place_of_the_folder_of_downloads_is_not_followed(digits: Source, link: str, tmp_path: Path) -> None:
    data, mine = tmp_path / "linked", tmp_path / "mine"
    place = data / link.replace("NAME", digits.name)
    for folder in (mine / digits.name, mine, place.parent):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "precious").write_text("precious")
    place.symlink_to(mine)
    with pytest.raises(WriteError, match="incoming"):
        get(digits, data)
    assert files(mine) == sorted(["precious", f"{digits.name}/precious"])
