"""Fetching the published datasets: resumed where it broke off, verified, and put in place only when whole.

Everything arrives in `.incoming` inside the data folder. What a broken download left there is where the next one goes on; what
turns out to be wrong is deleted; what is verified is moved to its place by renaming.
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
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from afaf.errors import DataError, LockedError, WriteError
from afaf.files import REFUSED, check_replaceable, open_regular, read_bytes, reason, writing
from afaf.files.lock import FolderLock
from afaf.streams.sources.safety import Limits, member_blocks, plain_members
from afaf.streams.sources.source import Remote, Source
from afaf.streams.sources.verify import Inspection, inspect

INCOMING = ".incoming"
BLOCK = 256 * 1024
STALLS, BREAKS = 3, 100  # tries of one address: without a byte of progress in a row, and in all
PAUSE = 1.0  # seconds before the next try
TIMEOUT = 30.0  # seconds a server may be silent
LIMITS = Limits(members=100, member=256 * 1024**2, total=512 * 1024**2)  # of CIFAR's archives; published: 8 files, 184 MB

Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all (as far as known)


def quiet(_name: str, _done: int, _total: int) -> None:
    """Shows nothing."""


def get(source: Source, folder: Path, progress: Progress = quiet) -> Inspection:
    """Downloads a dataset into the data folder; what was there before is replaced only by verified files."""
    if not source.remotes:
        raise DataError(f"{source.title} needs no download")
    incoming = folder / INCOMING / source.name
    with _writing(folder):
        incoming.mkdir(parents=True, exist_ok=True)
    with _tidied(incoming), _writing(folder), _alone(incoming):
        ready = incoming / "ready"
        shutil.rmtree(ready, ignore_errors=True)
        for remote in source.remotes:
            archive = incoming / PurePosixPath(remote.name).name
            if not (archive.exists() and remote.md5 in (None, _md5(archive))):
                download(remote, archive, progress)
        try:
            found = _make_ready(source, incoming, ready)
        except DataError:
            shutil.rmtree(incoming, ignore_errors=True)
            raise
        for path in sorted(ready.iterdir()):
            _put_in_place(path, folder / path.name)
        shutil.rmtree(incoming, ignore_errors=True)
    return found


def _make_ready(source: Source, incoming: Path, ready: Path) -> Inspection:
    """The files as the source looks for them, below `ready`, and verified there."""
    for remote in source.remotes:
        archive, target = incoming / PurePosixPath(remote.name).name, ready / remote.name
        if remote.unpack:
            _unpack(archive, ready, source.places)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(archive, target)
    found = inspect(source, ready)
    if found.state not in ("verified", "counted"):
        raise DataError(f"what was downloaded is not {source.title} and was deleted: {found.note}")
    return found


def _unpack(archive: Path, ready: Path, places: tuple[str, ...]) -> None:
    """The members below the source's own folder; the others are left out."""
    for member, tar in plain_members(archive, LIMITS):
        name = PurePosixPath(member.name)
        if not name.parts or name.parts[0] not in places:
            continue
        target = ready.joinpath(*name.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as out:
            out.writelines(member_blocks(tar, member, archive))


def _put_in_place(new: Path, place: Path) -> None:
    """By renaming: a folder at once where there is none, else file by file, so that other files in it survive."""
    if new.is_dir() and place.is_dir():
        for path in sorted(new.iterdir()):
            _put_in_place(path, place / path.name)
    else:
        check_replaceable(place)
        os.replace(new, place)


def download(remote: Remote, target: Path, progress: Progress = quiet) -> None:
    """Fetches one file from the first address that serves it right; `target` appears only when it is whole and verified."""
    problems = []
    for url in addresses(remote):
        try:
            _download_from(url, remote, target, progress)
            return
        except (DataError, OSError, http.client.HTTPException, ValueError) as error:  # the last: a mirror that is no address
            problems.append(f"  {url}: {_reason(error)}")
    raise DataError(
        f"could not download {remote.name}:\n" + "\n".join(problems) + "\nTry again later (what arrived is kept and resumed), "
        f"name a mirror in AFAF_MIRROR, or put the file at {target} yourself and run the command again"
    )


def addresses(remote: Remote) -> list[str]:
    """The mirror the user named, if any, then the official ones."""
    mirror = os.environ.get("AFAF_MIRROR")
    return [*([f"{mirror.rstrip('/')}/{remote.name}"] if mirror else []), *remote.urls]


def _download_from(url: str, remote: Remote, target: Path, progress: Progress) -> None:
    """From one address, going on after each break as long as bytes keep coming; then the checksum decides."""
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
        found = _md5(arriving.path)
        if found != remote.md5:
            arriving.discard()
            raise DataError(f"wrong checksum (md5 {found}, published {remote.md5}): deleted")
    os.replace(arriving.path, target)
    arriving.discard()


class _TooMuch(DataError):
    """More bytes than the published file has."""


@dataclass
class _Arriving:
    """The part of a file that has arrived, and which version of it the server said it was."""

    target: Path
    url: str

    @property
    def path(self) -> Path:
        return self.target.with_name(self.target.name + ".part")

    @property
    def _note(self) -> Path:
        return self.target.with_name(self.target.name + ".part.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str | None:
        """What the server called the version that is arriving, if that came from this address."""
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
    """One request: the rest of the file if some has arrived, else all of it."""
    if arriving.size and arriving.version() is None and remote.md5 is None:
        arriving.discard()  # nothing could tell whether the two pieces belong together
    start = arriving.size
    headers = {"User-Agent": "afaf", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version := arriving.version():
            headers["If-Range"] = version
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start and _total(error.headers) == start:  # all of it had arrived
            return
        if error.code == 416 and start:
            arriving.discard()
            raise OSError("the server has another version of the file: starting again") from error
        raise
    with response:
        start, total = _agreed_start(response, start)
        at_most = remote.size if remote.md5 is not None else 2 * remote.size  # without a checksum the size is no promise
        if total is not None and (total > at_most or (remote.md5 is not None and total < at_most)):
            raise DataError(f"the server offers {total} bytes, but the published file has {remote.size}: another file")
        arriving.starts(_version(response.headers))
        with arriving.path.open("r+b" if start else "wb") as out:
            out.seek(start)
            out.truncate()
            _copy(response, out, start, total, at_most, lambda done: progress(remote.name, done, total or remote.size))


def _agreed_start(response: Any, asked: int) -> tuple[int, int | None]:
    """Where the server's bytes belong, and how long the whole file is; a server may ignore that only the rest was asked for."""
    if response.status == 206:
        unit, _, span = response.headers.get("Content-Range", "").partition(" ")
        if unit == "bytes" and span.partition("-")[0] == str(asked):
            return asked, _total(response.headers)
        raise DataError("the server sent another part of the file than asked for")
    length = response.headers.get("Content-Length")
    return 0, int(length) if length and length.isdigit() else None


def _total(headers: Any) -> int | None:
    total = headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isdigit() else None


def _version(headers: Any) -> str | None:
    """What `If-Range` may carry: a strong entity tag, or the date."""
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


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason) or type(error).__name__


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A full disk or a folder that may not be written is the user's to mend."""
    try:
        yield
    except (DataError, urllib.error.URLError):
        raise
    except OSError as error:
        raise WriteError(f"cannot write to {folder}: {reason(error)}; or name another folder with --data") from error


@contextmanager
def _tidied(folder: Path) -> Iterator[None]:
    """No empty folders stay behind; what arrived so far does."""
    try:
        yield
    finally:
        for empty in (folder, folder.parent):
            with suppress(OSError):
                empty.rmdir()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time downloads a dataset; a lock of the system's, so none is left behind by a killed one."""
    lock = FolderLock(folder)
    try:
        lock.take()
    except LockedError as error:
        raise DataError(f"another process is downloading into {folder}: wait until it is done") from error
    try:
        yield
    finally:
        lock.release()
        lock.path.unlink(missing_ok=True)
