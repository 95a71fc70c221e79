"""The data folder: the given one, else `AFAF_DATA`, else the platform's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder(data: Path | str | None = None) -> Path:
    """Return the data folder, which may not exist yet."""
    chosen = data if data is not None else os.environ.get("AFAF_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder() / "data"


def cache_folder() -> Path:
    """Return the platform's folder for files that can be fetched again."""
    from platformdirs import user_cache_path  # a rare call: not at import

    return user_cache_path("afaf", appauthor=False)
