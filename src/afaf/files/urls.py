"""Files behind URLs, read by fsspec, which is imported when a URL is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from afaf.errors import ConfigError, DataError

Place = Path | str  # a path, or a URL


def is_url(place: object) -> bool:
    return isinstance(place, str) and "://" in place


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url}: {error}") from None
    return system, str(path)


def read_url(url: str, at_most: int) -> bytes:
    """The bytes of a file behind a URL."""
    system, path = file_system(url)
    with system.open(path, "rb") as file:
        data = bytes(file.read(at_most + 1))
    if len(data) > at_most:
        raise DataError(f"{url}: larger than {at_most:,} bytes")
    return data
