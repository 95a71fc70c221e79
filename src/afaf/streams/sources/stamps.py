"""A cache of inspections, valid as long as the files do not change, so that `afaf data list` answers at once.

It lies in the cache folder, since the data folder may be read-only. Losing it costs only time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from afaf.errors import WriteError
from afaf.files import make_folders, read_bytes, write_whole
from afaf.files.read import TEXT_LIMIT
from afaf.streams.sources.source import Source, cache_folder
from afaf.streams.sources.verify import Inspection, inspect


def inspect_remembered(source: Source, folder: Path) -> Inspection:
    """Return the last inspection if the files have not changed, else a new one."""
    entry = _read().get(_where(source, folder))
    if entry is not None and entry.get("files") == _fingerprint(source, folder):
        try:
            fields = entry["found"]
            return Inspection(**{**fields, "skipped": tuple(fields["skipped"])})
        except (KeyError, TypeError):  # written by another version
            pass
    return inspect_anew(source, folder)


def inspect_anew(source: Source, folder: Path) -> Inspection:
    """Inspect the files and cache the result."""
    files = _fingerprint(source, folder)
    inspection = inspect(source, folder)
    if files is not None:
        _write({**_read(), _where(source, folder): {"files": files, "found": asdict(inspection)}})
    return inspection


def _where(source: Source, folder: Path) -> str:
    return f"{source.name} in {folder.resolve()}"


def _fingerprint(source: Source, folder: Path) -> str | None:
    """Hash the names, sizes and times of the files, and the digests they are compared with."""
    if source.place(folder) is None:
        return None
    seen = [(path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns) for path in source.files(folder)]
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
    with contextlib.suppress(WriteError):  # works without a cache too
        make_folders(_file().parent)
        write_whole(_file(), json.dumps(notes).encode())
