"""Find image files: one folder per class, or any folder of images."""

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
    """Warns of images that are skipped because they cannot be read."""


def training_root(path: Path) -> Path:
    """Return `train` if it exists, else the folder itself. In the latter case `test` is a class, unless it holds class folders."""
    if (path / "train").is_dir():
        return path / "train"
    test = path / "test"
    if test.is_dir():
        with reading(test):
            names = os.listdir(test)
        if any((test / name).is_dir() for name in names) and not any(_is_image(name) for name in names):
            if holders := _class_holders(path, but=test):
                raise DataError(f"{path}: its folders hold class folders, not images: {_one_of(holders)}")
            raise DataError(
                f"{path}: test has folders of its own, as if it held the test images of each class, but there is no folder train: "
                f"put the class folders of the training images into {path / 'train'}"
            )
    return path


def class_files(root: Path) -> list[tuple[Path, str]]:
    """Return (image, class) for all class folders, sorted by path."""
    folders = _folders_in(root)
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
    _warn_of(foreign, root)
    return files


def image_files(path: Path) -> list[Path]:
    """Return the file itself, or all images in the folder and its subfolders, sorted."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder: name images, or folders of images")
    if not path.is_dir():
        return [path]
    files, foreign = _images_below(path)
    if not files:
        raise DataError(f"{path}: no images ({_other_formats(foreign) or LOOKED_FOR})")
    _warn_of(foreign, path)
    return files


def _advice(files: Sequence[Path], root: Path) -> str:
    """Name the folders that seem to hold class folders: in each subfolder of root, two levels above its topmost image."""
    holders: dict[str, Path] = {}
    for path in sorted(files, key=lambda path: (len(path.parts), path)):
        holder = path.parent.parent
        if holder.name in ("train", "test") and (holder.parent / "train").is_dir():
            holder = holder.parent
        holders.setdefault(path.relative_to(root).parts[0], holder)
    return _one_of(sorted(set(holders.values())))


def _one_of(folders: Sequence[Path]) -> str:
    if len(folders) == 1:
        return f"name {folders[0]}, which holds the class folders"
    shown = ", ".join(map(str, folders[:3])) + (" ..." if len(folders) > 3 else "")
    return f"name one folder that holds class folders, of {shown}; each of them can be learned as a task of its own"


def _class_holders(root: Path, but: Path) -> list[Path]:
    """The other subfolders of a folder that hold folders with images in them, and no images of their own."""
    holders = []
    for folder in _folders_in(root):
        if folder != but and not _has_images(folder) and any(map(_has_images, _folders_in(folder))):
            holders.append(folder)
    return holders


def _folders_in(folder: Path) -> list[Path]:
    with reading(folder):
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _has_images(folder: Path) -> bool:
    with reading(folder):
        return any(_is_image(name) for name in os.listdir(folder))


def _images_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the images in a folder and its subfolders, and those of unsupported formats, without hidden files.

    Links are followed, to each folder once; a folder that may not be read is an error.
    """
    images: list[Path] = []
    foreign: list[Path] = []
    visited: set[tuple[int, int]] = set()
    for here, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        with reading(here):
            status = os.stat(here)
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        images += [Path(here, name) for name in names if _is_image(name)]
        foreign += [Path(here, name) for name in names if _is_image(name, NOT_READ)]
    return sorted(images), sorted(foreign)


def _warn_of(foreign: Sequence[Path], root: Path) -> None:
    if foreign:
        warnings.warn(f"{root}: {_other_formats(foreign)}", SkippedImages, stacklevel=4)


def _other_formats(foreign: Sequence[Path]) -> str:
    """Say that images are skipped because of their format; empty if there are none."""
    counts = Counter(path.suffix.lower() for path in foreign)
    words = ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))
    heic = " (afaf[heic] reads .heic)" if counts.keys() & {".heic", ".heif"} else ""
    return f"{words} files are skipped, a format that cannot be read: convert them to JPEG or PNG{heic}" if words else ""


def _refuse(error: OSError) -> None:
    with reading(error.filename):
        raise error


def _is_image(name: str, suffixes: frozenset[str] = SUFFIXES) -> bool:
    return Path(name).suffix.lower() in suffixes and not name.startswith(".")
