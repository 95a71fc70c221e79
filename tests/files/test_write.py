"""Files appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from afaf.errors import OverwriteError, WriteError
from afaf.files import append_line, check_output, fill, is_part, remove_parts, write_output, write_whole
from afaf.runs.folder import RunFolder
from afaf.sweeps.store import Store


def test_until_it_is_whole_the_old_file_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_whole(path, b"old")

    def write(temporary: Path) -> None:
        fill(temporary, b"half of ")
        assert path.read_bytes() == b"old"
        assert temporary.suffix == path.suffix  # some writers go by it
        fill(temporary, b"new" + b"er" * 100_000 + b"!")
        assert path.read_bytes() == b"old"

    write_whole(path, write)
    assert path.read_bytes() == b"new" + b"er" * 100_000 + b"!"
    assert list(tmp_path.iterdir()) == [path]


def test_it_is_on_the_disk_before_it_gets_its_name_and_so_is_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        done.append(f"sync {'folder' if os.path.isdir(f'/proc/self/fd/{handle}') else 'file'}")
        sync(handle)

    def replace(source: Path, target: Path) -> None:
        done.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_whole(tmp_path / "file", b"new")
    assert done == ["sync file", "rename", "sync folder"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError("a mistake")])
def test_what_fails_leaves_the_old_file_and_nothing_else(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(temporary: Path) -> None:
        fill(temporary, b"half")
        raise error

    with pytest.raises(WriteError if isinstance(error, OSError) else type(error)):
        write_whole(path, write)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_takes_little_at_a_time_gets_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, bytes(data)[:7]))
    fill(tmp_path / "file", b"0123456789" * 3 + bytes(70_000))
    assert (tmp_path / "file").read_bytes() == b"0123456789" * 3 + bytes(70_000)


def test_a_line_is_appended_in_one_write_unless_the_disk_takes_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, path = os.write, tmp_path / "file"
    sizes: list[int] = []

    def taking(at_most: int) -> None:
        monkeypatch.setattr(os, "write", lambda handle, data: sizes.append(len(data)) or write(handle, bytes(data)[:at_most]))

    taking(100)
    append_line(path, "whole")
    taking(4)
    append_line(path, "in parts")
    assert path.read_text() == "whole\nin parts\n"
    assert sizes == [6, 9, 5, 1]


@pytest.mark.parametrize("which", ["log", "results"])
def test_a_line_the_disk_has_no_room_for_is_an_error_and_the_next_is_whole(which: str, tmp_path: Path) -> None:
    """The system itself takes some of the line and refuses the rest."""
    resource = pytest.importorskip("resource")

    def put(record: dict[str, Any]) -> None:
        RunFolder(tmp_path).log(record) if which == "log" else Store(tmp_path).append("log", record)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "log.jsonl"
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        put({"n": 1})
        for _ in range(2):
            with pytest.raises(WriteError, match=str(path)):
                put({"n": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    put({"n": 3})
    first, half, last = path.read_text().splitlines()
    assert first.replace(" ", "") == '{"n":1}'
    assert half.startswith('{"n":')
    assert last.replace(" ", "") == '{"n":3}'


KILLED = """
import os, signal, sys
from pathlib import Path
from afaf.files import fill, write_whole
def write(part):
    fill(part, b"half")
    print("writing", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
write_whole(Path(sys.argv[1]), write)
"""


def test_only_a_dead_writers_file_is_removed_and_nothing_of_the_users(tmp_path: Path) -> None:
    """Also not one that looks like it; and not one of a writer that lives."""
    own = [".model.ab12cd34.part.safetensors", ".download.part", ".afaf-part-notes", "model.safetensors", ".lock"]
    for name in own:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".afaf-part-00000000").mkdir()
    (tmp_path / ".afaf-part-11111111").symlink_to(tmp_path / "model.safetensors")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "new.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "writing\n"
        remove_parts(tmp_path)
        [part] = [path for path in tmp_path.iterdir() if is_part(path.name) and path.suffix == ".json"]
        assert part.read_bytes() == b"half"
        writer.stdin.write("\n")
        writer.stdin.flush()
        writer.wait()
    assert part.exists()
    remove_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*own, ".afaf-part-00000000", ".afaf-part-11111111"])
    assert (tmp_path / "model.safetensors").read_text() == "mine"


def test_a_name_as_long_as_names_can_be_is_written(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 255), tmp_path / ("y" * 100 + "." + "z" * 154)):
        write_whole(path, b"new")
        assert path.read_bytes() == b"new"


@pytest.mark.parametrize("kind", ["link", "broken link", "folder", "pipe", "device"])
def test_only_a_regular_file_is_replaced(kind: str, tmp_path: Path) -> None:
    path, aim = tmp_path / "file", tmp_path / "aim"
    if kind != "broken link":
        aim.write_bytes(b"precious")
    make(kind, path, aim)
    before = os.lstat(path)
    with pytest.raises(WriteError):
        write_whole(path, b"new")
    assert os.lstat(path) == before
    assert aim.exists() == (kind != "broken link")
    assert not [other for other in tmp_path.iterdir() if is_part(other.name)]


def make(kind: str, path: Path, aim: Path) -> None:
    if "link" in kind:
        path.symlink_to(aim)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        make_null(path)


def make_null(path: Path) -> None:
    """A device of the test's own that takes and forgets what is written to it."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.write_bytes(b"")
    except OSError:
        pytest.skip("this user may not make devices")


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_line_is_appended_to_a_regular_file_only(kind: str, tmp_path: Path) -> None:
    path, aim = tmp_path / "log.jsonl", tmp_path / "aim"
    aim.write_bytes(b"precious")
    make(kind, path, aim)
    with pytest.raises(WriteError):
        append_line(path, "line")
    assert aim.read_bytes() == b"precious"


PAGE = b'<!doctype html><meta name="generator" content="afaf 0.1">'


def put(path: Path, content: bytes = PAGE, **options: Any) -> None:
    write_output(path, "html", content, **options)


def test_an_output_replaces_an_output_of_its_kind_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    put(path, PAGE + b"1")
    put(path, PAGE + b"2")
    assert path.read_bytes() == PAGE + b"2"
    for mine in (b"", b"mine", b"<!doctype html><title>afaf</title>", b'{"__metadata__":{"afaf":'):
        path.write_bytes(mine)
        with pytest.raises(OverwriteError, match="--force"):
            put(path)
        assert path.read_bytes() == mine
    put(path, force=True)
    assert path.read_bytes() == PAGE
    with pytest.raises(WriteError):
        put(tmp_path, force=True)


def test_an_output_never_replaces_an_input(tmp_path: Path) -> None:
    given, hard, soft = tmp_path / "given.html", tmp_path / "hard.html", tmp_path / "soft.html"
    put(given)
    hard.hardlink_to(given)
    soft.symlink_to(given)
    for path in (given, hard, soft, tmp_path / "." / "given.html"):
        with pytest.raises(OverwriteError):
            put(path, b"new", inputs=[given], force=True)
    (tmp_path / "images").mkdir()
    with pytest.raises(OverwriteError):
        put(tmp_path / "images" / "new.html", inputs=[tmp_path / "images"], force=True)
    assert given.read_bytes() == PAGE


def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path: Path) -> None:
    link, aim = tmp_path / "link.html", tmp_path / "folder" / "aim.html"
    aim.parent.mkdir()
    aim.write_bytes(b"mine")
    link.symlink_to(aim)
    with pytest.raises(OverwriteError):
        put(link)
    put(link, force=True)
    assert link.is_symlink()
    assert aim.read_bytes() == PAGE


def test_a_device_and_a_pipe_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(WriteError, match="pipe"):
        put(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    put(pipe)
    assert os.read(reader, 1000) == PAGE
    os.close(reader)
    device = tmp_path / "null"
    make_null(device)
    put(device)
    assert stat.S_ISCHR(os.lstat(device).st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["null", "pipe"]


def test_what_came_in_between_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    check_output(path, "html")

    def slow(part: Path) -> None:
        fill(part, PAGE)
        path.write_bytes(b"mine")

    with pytest.raises(OverwriteError):
        write_output(path, "html", slow)
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]
