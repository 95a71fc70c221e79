"""A source is one published dataset: its classes, its files, and how to read them as arrays.

Images are read in chunks of a few megabytes, in the publisher's order, so that a dataset is never in memory twice: whoever asks
for images places each chunk where it belongs and lets it go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
    """One part of a dataset, opened: the labels, and the images as chunks that follow the labels' order."""

    labels: NDArray[np.uint8]
    chunks: Callable[[], Iterator[Pixels]]
    skipped: tuple[str, ...] = ()  # unreadable images that were left out, by name

    def pairs(self) -> Iterator[tuple[Pixels, NDArray[np.uint8]]]:
        """Chunks of images with their labels."""
        start = 0
        for images in self.chunks():
            yield images, self.labels[start : start + len(images)]
            start += len(images)


def in_memory(images: Pixels, labels: NDArray[np.uint8], order: NDArray[np.intp], skipped: tuple[str, ...] = ()) -> Records:
    """Records of a dataset that is read at once, in the given order."""

    def chunks() -> Iterator[Pixels]:
        for start in range(0, len(order), CHUNK):
            yield images[order[start : start + CHUNK]]

    return Records(labels[order], chunks, skipped)


@dataclass(frozen=True)
class Remote:
    """A file to download: the addresses that serve it, and what is known about it."""

    name: str
    urls: tuple[str, ...]
    size: int  # bytes, as published; a server may send a little more or less, never a lot
    md5: str | None = None  # as published; None where the publisher gives none
    unpack: bool = False  # a tar archive whose members are the files to keep


@dataclass(frozen=True)
class Source:
    """What is known about a dataset without its files, and how to open them."""

    name: str
    title: str
    class_names: tuple[str, ...]
    counts: Mapping[Part, tuple[int, ...]]  # published images of each class
    shape: tuple[int, int, int]  # height, width, channels of an image as a stream has it
    preparation: Preparation
    open: Callable[[Path], dict[Part, Records]]
    places: tuple[str, ...] = ()  # where in the data folder it is looked for, the first that is there
    remotes: tuple[Remote, ...] = ()
    fits: Mapping[str, Callable[[Pixels], Pixels]] = field(default_factory=dict)  # ways to that size, the usual one first
    digests: Mapping[str, str] = field(default_factory=dict)  # see verify.py

    def fit(self, images: Pixels, way: str | None = None) -> Pixels:
        """Images at the size a stream has them, in the way asked for where there is a choice."""
        if not self.fits:
            return images
        usual, *others = self.fits
        return self.fits[way if way is not None and others else usual](images)

    @property
    def needs_files(self) -> bool:
        return bool(self.places)

    def place(self, folder: Path) -> Path | None:
        """The file or folder that holds the dataset, if it is there."""
        return next((folder / place for place in self.places if (folder / place).exists()), None)

    def records(self, folder: Path) -> dict[Part, Records]:
        """Both parts of the dataset, opened; a `DataError` says what is missing or damaged."""
        if self.needs_files and self.place(folder) is None:
            raise DataError(
                f"{self.title} is not in {folder} (looked for {' or '.join(self.places)}): "
                f"run 'afaf data get {self.name}', or name the folder that has it with --data or AFAF_DATA"
            )
        return self.open(folder)


@contextmanager
def reading(path: Path | str, advice: str = "it is damaged or not what its name says: replace it") -> Iterator[None]:
    """Turns whatever a decoder raises on bad bytes into one `DataError` that names the file."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except OSError as error:
        if error.errno is None:  # a decoder's own
            raise DataError(f"{path}: cannot be read ({type(error).__name__}: {_short(error)}): {advice}") from error
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # decoders meet hostile bytes with errors of every type
        raise DataError(f"{path}: cannot be read ({type(error).__name__}: {_short(error)}): {advice}") from error


def _short(error: Any) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."


def check_labels(labels: NDArray[np.uint8], n_classes: int, path: Path) -> None:
    """A label beyond the last class means the file is not what its name says."""
    if len(labels) and int(labels.max()) >= n_classes:
        at = int(np.flatnonzero(labels >= n_classes)[0])
        raise DataError(
            f"{path}: record {at} has label {int(labels[at])}, but the classes are 0 to {n_classes - 1}: "
            f"the file is damaged or of another dataset; replace it"
        )
