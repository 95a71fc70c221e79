"""Download the published datasets: resumable, verified, moved into place only when complete.

Files arrive in `.incoming` inside the data folder. An interrupted download is resumed from there, a wrong file is deleted, verified
files are renamed to their place.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from afaf.errors import DataError, LockedError, WriteError
from afaf.files import REFUSED, check_replaceable, make_folders, open_regular, read_bytes, writing
from afaf.files.lock import NAME as LOCK
from afaf.files.lock import FolderLock
from afaf.streams.sources.safety import Limits, member_blocks, plain_members
from afaf.streams.sources.source import Remote, Source
from afaf.streams.sources.verify import Inspection, inspect

INCOMING = ".incoming"
BLOCK = 256 * 1024
STALLS, BREAKS = 3, 100  # attempts per URL: in a row without progress, and in total
PAUSE = 1.0  # seconds before the next attempt
TIMEOUT = 30.0  # seconds a server may be silent
ELSEWHERE = "name another folder with --data"
LIMITS = Limits(members=100, member=256 * 1024**2, total=512 * 1024**2)  # for CIFAR's archives; published: 8 files, 184 MB

Progress = Callable[[str, int, int], None]  # file, bytes so far, total bytes (an estimate if the server names none)


def quiet(_name: str, _done: int, _total: int) -> None:
    """Show no progress."""


def get(source: Source, folder: Path, progress: Progress = quiet) -> Inspection:
    """Download a dataset into the data folder; existing files are replaced only by verified ones."""
    if not source.remotes:
        raise DataError(f"{source.title} needs no download")
    incoming = folder / INCOMING / source.name
    for place in (incoming.parent, incoming):  # their contents are deleted at the end
        if place.is_symlink():
            raise WriteError(f"{place} is a link, which downloads do not follow: remove it")
    make_folders(incoming, ELSEWHERE)
    with _without_empty_folders(incoming), writing(folder, ELSEWHERE), _locked(incoming):
        ready = incoming / "ready"
        shutil.rmtree(ready, ignore_errors=True)
        for remote in source.remotes:
            archive = incoming / PurePosixPath(remote.name).name
            if not (archive.exists() and remote.md5 in (None, _md5(archive))):
                download(remote, archive, progress)
        try:
            inspection = _make_ready(source, incoming, ready)
        except DataError:
            _empty(incoming)
            raise
        for path in sorted(ready.iterdir()):
            _put_in_place(path, folder / path.name)
        _empty(incoming)
    return inspection


def _make_ready(source: Source, incoming: Path, ready: Path) -> Inspection:
    """Unpack or move the files into `ready`, as they will lie in the data folder, and verify them."""
    for remote in source.remotes:
        archive, target = incoming / PurePosixPath(remote.name).name, ready / remote.name
        if remote.unpack:
            _unpack(archive, ready, source.places)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(archive, target)
    inspection = inspect(source, ready)
    if inspection.state != "verified":
        raise DataError(f"the downloaded files are not {source.title} and were deleted: {inspection.note}")
    return inspection


def _unpack(archive: Path, ready: Path, places: tuple[str, ...]) -> None:
    """Unpack the members below the dataset's own folder; skip the others."""
    for member, tar in plain_members(archive, LIMITS):
        name = PurePosixPath(member.name)
        if not name.parts or name.parts[0] not in places:
            continue
        target = ready.joinpath(*name.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as out:
            out.writelines(member_blocks(tar, member, archive))


def _put_in_place(new: Path, place: Path) -> None:
    """Rename a file or folder to its place; into an existing folder file by file, so that its other files survive."""
    if new.is_dir() and place.is_dir():
        for path in sorted(new.iterdir()):
            _put_in_place(path, place / path.name)
    else:
        check_replaceable(place)
        os.replace(new, place)


def download(remote: Remote, target: Path, progress: Progress = quiet) -> None:
    """Download one file from the first URL that serves it; `target` appears only when complete and verified."""
    problems = []
    for url in addresses(remote):
        try:
            _download_from(url, remote, target, progress)
            return
        except (DataError, OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a mirror that is not a URL
            problems.append(f"  {url}: {str(getattr(error, 'reason', None) or error) or type(error).__name__}")
    raise DataError(
        f"could not download {remote.name}:\n" + "\n".join(problems) + "\nTry again later (the download will be resumed), "
        f"name a mirror in AFAF_MIRROR, or put the file at {target} yourself and run the command again"
    )


def addresses(remote: Remote) -> list[str]:
    """Return the URL on the mirror in AFAF_MIRROR, if set, then the official ones."""
    mirror = os.environ.get("AFAF_MIRROR")
    return [*([f"{mirror.rstrip('/')}/{remote.name}"] if mirror else []), *remote.urls]


def _download_from(url: str, remote: Remote, target: Path, progress: Progress) -> None:
    """Download from one URL; resume after each interruption as long as there is progress, then check the checksum."""
    arriving = _Arriving(target, url)
    stalled = breaks = 0
    while True:
        before = arriving.size
        try:
            _fetch(url, arriving, remote, progress)
            break
        except _TooMuch:
            arriving.discard()
            raise
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise
            if getattr(error, "errno", None) in REFUSED:
                with writing(arriving.path):
                    raise
            stalled, breaks = 0 if arriving.size > before else stalled + 1, breaks + 1
            if stalled == STALLS or breaks == BREAKS:
                raise
            time.sleep(PAUSE * stalled)
    if remote.md5 is not None:
        md5 = _md5(arriving.path)
        if md5 != remote.md5:
            arriving.discard()
            raise DataError(f"wrong checksum (md5 {md5}, published {remote.md5}): deleted")
    os.replace(arriving.path, target)
    arriving.discard()


class _TooMuch(DataError):
    """The server sends more bytes than the published file has."""


class _Arriving:
    """The part of a file that has arrived, and the version that the server stated."""

    def __init__(self, target: Path, url: str):
        self.url = url
        self.path, self._note = (target.with_name(target.name + suffix) for suffix in (".part", ".part.json"))

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str | None:
        """Return the version that the server stated, if the part came from this URL."""
        try:
            note = json.loads(read_bytes(self._note, 1 << 16))
            return str(note["version"]) if note["url"] == self.url and note["version"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def starts(self, version: str | None) -> None:
        self._note.write_text(json.dumps({"url": self.url, "version": version}), "utf-8")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


def _fetch(url: str, arriving: _Arriving, remote: Remote, progress: Progress) -> None:
    """Send one request: for the rest of the file if a part has arrived, else for all of it."""
    if arriving.size and arriving.version() is None and remote.md5 is None:
        arriving.discard()  # without a version or checksum, the two parts may be of different files
    start = arriving.size
    headers = {"User-Agent": "afaf", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version := arriving.version():
            headers["If-Range"] = version
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start and _total(error.headers) == start:  # the file is complete
            return
        if error.code == 416 and start:
            arriving.discard()
            raise OSError("the server has another version of the file: restarting") from error
        raise
    with response:
        start, total = _agreed_start(response, start)
        at_most = remote.size if remote.md5 is not None else 2 * remote.size  # without a checksum the size is an estimate
        if total is not None and (total > at_most or (remote.md5 is not None and total < at_most)):
            raise DataError(f"the server offers {total} bytes, but the published file has {remote.size}: another file")
        arriving.starts(_version(response.headers))
        with arriving.path.open("r+b" if start else "wb") as out:
            out.seek(start)
            out.truncate()
            _copy(response, out, start, total, at_most, lambda done: progress(remote.name, done, total or remote.size))


def _agreed_start(response: Any, requested: int) -> tuple[int, int | None]:
    """Return the offset of the server's bytes and the file's total size; a server may ignore the requested range."""
    if response.status == 206:
        unit, _, span = response.headers.get("Content-Range", "").partition(" ")
        if unit == "bytes" and span.partition("-")[0] == str(requested):
            return requested, _total(response.headers)
        raise DataError("the server sent another part of the file than requested")
    length = response.headers.get("Content-Length")
    return 0, int(length) if length and length.isdigit() else None


def _total(headers: Any) -> int | None:
    total = headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isdigit() else None


def _version(headers: Any) -> str | None:
    """Return the value for `If-Range`: a strong entity tag, or the date."""
    tag, date = headers.get("ETag"), headers.get("Last-Modified")
    version = tag if tag and not tag.startswith("W/") else date
    return str(version) if version else None


def _copy(response: Any, out: Any, done: int, total: int | None, at_most: int, report: Callable[[int], None]) -> None:
    report(done)
    while block := response.read(BLOCK):
        done += len(block)
        if done > at_most:
            raise _TooMuch("the server sends more than the published file has: another file, deleted")
        out.write(block)
        report(done)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _md5(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _empty(incoming: Path) -> None:
    """Delete what has arrived, but not the lock: without it, another process could begin while this one still deletes."""
    for path in incoming.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            with suppress(OSError):
                path.unlink()


@contextmanager
def _without_empty_folders(folder: Path) -> Iterator[None]:
    """Remove the folder and its parent at the end if they are empty."""
    try:
        yield
    finally:
        for empty in (folder, folder.parent):
            with suppress(OSError):
                empty.rmdir()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder, so that one process at a time downloads a dataset."""
    lock = FolderLock(folder)
    try:
        lock.take()
    except LockedError as error:
        raise DataError(f"another process is downloading into {folder}: wait until it is done") from error
    try:
        yield
    finally:
        lock.remove()
