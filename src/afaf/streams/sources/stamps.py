"""What was found at the last look, remembered as long as the files do not change, so that `afaf data list` answers at once.

The notes are kept in the cache folder, not beside the data (which may be read-only), and losing them costs only time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from afaf.errors import WriteError
from afaf.files import fill, make_folders, read_bytes, write_whole
from afaf.files.read import TEXT_LIMIT
from afaf.streams.sources.folder import cache_folder
from afaf.streams.sources.source import Source
from afaf.streams.sources.verify import Inspection, inspect


def inspect_remembered(source: Source, folder: Path) -> Inspection:
    """The last inspection if nothing has changed since, else a new one."""
    known = _read().get(_where(source, folder))
    if known is not None and known.get("files") == _fingerprint(source, folder):
        try:
            found = dict(known["found"])
            return Inspection(**{**found, "skipped": tuple(found["skipped"])})
        except (KeyError, TypeError):  # written by another version
            pass
    return inspect_anew(source, folder)


def inspect_anew(source: Source, folder: Path) -> Inspection:
    """A new inspection, remembered."""
    files = _fingerprint(source, folder)
    found = inspect(source, folder)
    if files is not None:
        _write({**_read(), _where(source, folder): {"files": files, "found": asdict(found)}})
    return found


def _where(source: Source, folder: Path) -> str:
    return f"{source.name} in {folder.resolve()}"


def _fingerprint(source: Source, folder: Path) -> str | None:
    """Names, sizes and times of the files, and the digests they were compared with."""
    place = source.place(folder)
    if place is None:
        return None
    paths = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    seen = [(path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr((seen, sorted(source.digests.items()))).encode()).hexdigest()


def _file() -> Path:
    return cache_folder() / "inspections.json"


def _read() -> dict[str, Any]:
    try:
        notes = json.loads(read_bytes(_file(), TEXT_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return notes if isinstance(notes, dict) else {}


def _write(notes: dict[str, Any]) -> None:
    with contextlib.suppress(WriteError):  # a cache that cannot be written is no cache
        make_folders(_file().parent)
        write_whole(_file(), lambda part: fill(part, [json.dumps(notes).encode()]))
