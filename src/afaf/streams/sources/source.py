"""A source is one published dataset: its classes, its files, and how to read them as arrays.

Images are read in chunks of a few megabytes, in the publisher's order, so that a dataset is never in memory twice.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError
from afaf.streams.tasks import Preparation

Part = Literal["train", "test"]
PARTS: tuple[Part, Part] = ("train", "test")
Pixels = NDArray[np.uint8]  # (n, height, width, channels)
CHUNK = 1024  # images held at a time while reading


@dataclass(frozen=True)
class Records:
    """One part of a dataset: the labels, and an iterator over chunks of images in the same order."""

    labels: NDArray[np.uint8]
    chunks: Callable[[], Iterator[Pixels]]
    skipped: tuple[str, ...] = ()  # names of unreadable images

    def pairs(self) -> Iterator[tuple[Pixels, NDArray[np.uint8]]]:
        """Yield chunks of images with their labels."""
        start = 0
        for images in self.chunks():
            yield images, self.labels[start : start + len(images)]
            start += len(images)


def in_memory(images: Pixels, labels: NDArray[np.uint8], order: NDArray[np.intp], skipped: tuple[str, ...] = ()) -> Records:
    """Return records of arrays in memory, in the given order."""

    def chunks() -> Iterator[Pixels]:
        for start in range(0, len(order), CHUNK):
            yield images[order[start : start + CHUNK]]

    return Records(labels[order], chunks, skipped)


@dataclass(frozen=True)
class Remote:
    """A file to download."""

    name: str
    urls: tuple[str, ...]
    size: int  # bytes, as published
    md5: str | None = None  # as published; None if the publisher gives none
    unpack: bool = False  # a tar archive to unpack


@dataclass(frozen=True)
class Source:
    """The facts about a dataset that need no files, and the function that opens its files."""

    name: str
    title: str
    class_names: tuple[str, ...]
    counts: Mapping[Part, tuple[int, ...]]  # published images of each class
    shape: tuple[int, int, int]  # height, width, channels of an image in a stream
    preparation: Preparation
    open: Callable[[Path], dict[Part, Records]]
    places: tuple[str, ...] = ()  # names to look for in the data folder; the first that exists is used
    remotes: tuple[Remote, ...] = ()
    fits: Mapping[str, Callable[[Pixels], Pixels]] = field(default_factory=dict)  # ways to that shape, the default first
    digests: Mapping[str, str] = field(default_factory=dict)  # of each class, see verify.py

    def fit(self, images: Pixels, way: str | None = None) -> Pixels:
        """Bring images to the stream's shape; `way` is ignored if there is no choice."""
        if not self.fits:
            return images
        default, *others = self.fits
        return self.fits[way if way is not None and others else default](images)

    @property
    def needs_files(self) -> bool:
        return bool(self.places)

    def place(self, folder: Path) -> Path | None:
        """Return the dataset's file or folder, None if it is missing."""
        return next((folder / place for place in self.places if (folder / place).exists()), None)

    def files(self, folder: Path) -> list[Path]:
        """Return the files of the dataset that exist, sorted."""
        place = self.place(folder)
        return [] if place is None else [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())

    def records(self, folder: Path) -> dict[Part, Records]:
        """Open both parts; raise DataError if files are missing or damaged."""
        if self.needs_files and self.place(folder) is None:
            raise DataError(
                f"{self.title} is not in {folder} (looked for {' or '.join(self.places)}): "
                f"run 'afaf data get {self.name}', or name the folder that has it with --data or AFAF_DATA"
            )
        return self.open(folder)


@contextmanager
def reading(path: Path | str, advice: str = "it is damaged or not what its name says: replace it") -> Iterator[None]:
    """Turn any error of a decoder into a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except OSError as error:
        if error.errno is None:  # raised by a decoder
            raise DataError(f"{path}: cannot be read ({type(error).__name__}: {_short(error)}): {advice}") from error
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # decoders raise errors of every type on bad bytes
        raise DataError(f"{path}: cannot be read ({type(error).__name__}: {_short(error)}): {advice}") from error


def _short(error: Any) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."


def check_labels(labels: NDArray[np.uint8], n_classes: int, path: Path) -> None:
    """Refuse labels beyond the last class: the file is damaged or of another dataset."""
    if len(labels) and int(labels.max()) >= n_classes:
        at = int(np.flatnonzero(labels >= n_classes)[0])
        raise DataError(
            f"{path}: record {at} has label {int(labels[at])}, but the classes are 0 to {n_classes - 1}: "
            f"the file is damaged or of another dataset; replace it"
        )


def data_folder(data: Path | str | None = None) -> Path:
    """Return the data folder: the given one, else `AFAF_DATA`, else the platform's cache folder. It may not exist yet."""
    chosen = data if data is not None else os.environ.get("AFAF_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder() / "data"


def cache_folder() -> Path:
    """Return the platform's folder for files that can be fetched again."""
    from platformdirs import user_cache_path  # a rare call: not at import

    return user_cache_path("afaf", appauthor=False)


def dataset(name: str, open: Callable[[Path], dict[Part, Records]], fits: Mapping[str, Callable[[Pixels], Pixels]] | None = None) -> Source:
    """Return a dataset as datasets.toml and digests.json describe it; `open` reads its files, `fits` bring images to the stated shape."""
    facts = _read("datasets.toml", tomllib.loads)[name]
    counts = {part: facts["counts"][part] for part in PARTS}
    n_classes = len(facts["class_names"])
    preparation: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in facts["preparation"].items()}
    return Source(
        name=name,
        title=facts["title"],
        class_names=tuple(facts["class_names"]),
        counts={part: (count,) * n_classes if isinstance(count, int) else tuple(count) for part, count in counts.items()},
        shape=tuple(facts["shape"]),
        preparation=Preparation(**preparation),
        open=open,
        places=tuple(facts.get("places", ())),
        remotes=tuple(
            Remote(**remote, urls=tuple(url + PurePosixPath(remote["name"]).name for url in facts["mirrors"]))
            for remote in facts.get("remotes", ())
        ),
        fits=fits or {},
        digests=_read("digests.json", json.loads)[name],
    )


@cache
def _read(file: str, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return parse((files(__package__) / file).read_text(encoding="utf-8"))
