"""Images in folders, found by their names: a folder for each class, or a folder of images."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from afaf.errors import DataError
from afaf.streams.sources.images import NOT_READ, SUFFIXES
from afaf.streams.sources.source import reading

LOOKED_FOR = f"looked for {', '.join(sorted(SUFFIXES))}"


class SkippedImages(UserWarning):
    """Images that cannot be read are left out."""


def training_root(path: Path) -> Path:
    """The folder of the class folders: `train`, or the folder itself where there is none. Then `test` is a class, if it looks like one."""
    if (path / "train").is_dir():
        return path / "train"
    test = path / "test"
    if test.is_dir():
        with reading(test):
            names = os.listdir(test)
        if any((test / name).is_dir() for name in names) and not any(_is_image(name) for name in names):
            raise DataError(
                f"{path}: test has folders of its own, as if it held the test images of each class, but there is no folder train: "
                f"put the class folders of the training images into {path / 'train'}"
            )
    return path


def class_files(root: Path) -> list[tuple[Path, str]]:
    """The images of every class folder with their classes, in the order of their names."""
    with reading(root):
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise DataError(f"{root}: no class folders: put the images of each class into a folder of its own, {root / 'CLASS'}")
    files: list[tuple[Path, str]] = []
    foreign: list[Path] = []
    for folder in folders:
        paths, others = _images_below(folder)
        if not paths:
            raise DataError(f"{folder}: no images ({_other_formats(others) or LOOKED_FOR}): add some or remove the folder")
        files += [(path, folder.name) for path in paths]
        foreign += others
    if not any(path.parent.parent == root for path, _ in files):
        raise DataError(f"{root}: no image lies right in a class folder, only deeper: {_advice([path for path, _ in files], root)}")
    _tell_of(foreign, root)
    return files


def image_files(path: Path) -> list[Path]:
    """An image, or all images in a folder and below, by name."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder: name images, or folders of images")
    if not path.is_dir():
        return [path]
    files, foreign = _images_below(path)
    if not files:
        raise DataError(f"{path}: no images ({_other_formats(foreign) or LOOKED_FOR})")
    _tell_of(foreign, path)
    return files


def _advice(files: Sequence[Path], root: Path) -> str:
    """The folders that hold class folders: two above the image that lies highest, in each folder of the root."""
    holders: dict[str, Path] = {}
    for path in sorted(files, key=lambda path: (len(path.parts), path)):
        holder = path.parent.parent
        if holder.name in ("train", "test") and (holder.parent / "train").is_dir():
            holder = holder.parent
        holders.setdefault(path.relative_to(root).parts[0], holder)
    found = sorted(set(holders.values()))
    if len(found) == 1:
        return f"name {found[0]}, which holds the class folders"
    shown = ", ".join(map(str, found[:3])) + (" ..." if len(found) > 3 else "")
    return f"name one folder that holds class folders, of {shown}; each of them can be learned as a task of its own"


def _images_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """All images in a folder and below, by name, none hidden, and those of formats that cannot be read.

    Links are followed, to each folder once; a closed folder is an error.
    """
    found: list[Path] = []
    foreign: list[Path] = []
    been: set[tuple[int, int]] = set()
    for here, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        with reading(here):
            status = os.stat(here)
        if (status.st_dev, status.st_ino) in been:
            folders.clear()
            continue
        been.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(here, name) for name in names if _is_image(name)]
        foreign += [Path(here, name) for name in names if _is_image(name, NOT_READ)]
    return sorted(found), sorted(foreign)


def _tell_of(foreign: Sequence[Path], root: Path) -> None:
    if foreign:
        warnings.warn(f"{root}: {_other_formats(foreign)}", SkippedImages, stacklevel=4)


def _other_formats(foreign: Sequence[Path]) -> str:
    """That images are left out because of their format; empty where there are none."""
    counts = Counter(path.suffix.lower() for path in foreign)
    words = ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))
    heic = " (afaf[heic] reads .heic)" if counts.keys() & {".heic", ".heif"} else ""
    return f"{words} files are left out, a format that cannot be read: convert them to JPEG or PNG{heic}" if words else ""


def _refuse(error: OSError) -> None:
    with reading(error.filename):
        raise error


def _is_image(name: str, suffixes: frozenset[str] = SUFFIXES) -> bool:
    return Path(name).suffix.lower() in suffixes and not name.startswith(".")
