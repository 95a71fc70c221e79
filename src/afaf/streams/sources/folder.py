"""Where the datasets live: the folder asked for, else `AFAF_DATA`, else the platform's cache folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_folder(data: Path | str | None = None) -> Path:
    """The data folder; it need not exist yet."""
    if data is not None:
        return Path(data).expanduser()
    named = os.environ.get("AFAF_DATA")
    return Path(named).expanduser() if named else cache_folder() / "data"


def cache_folder() -> Path:
    """The folder this platform keeps for files that can be fetched again."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return (Path(base) if base else Path.home() / "AppData" / "Local") / "afaf" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "afaf"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "afaf"
