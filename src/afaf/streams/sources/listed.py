"""Labelled images wherever they are: a manifest (a CSV file of path and label), or a folder behind a URL that fsspec can open."""

from __future__ import annotations

import csv
import time
from pathlib import Path

from afaf.errors import DataError
from afaf.files import read_text
from afaf.files.urls import Place, file_system, is_url
from afaf.streams.sources.images import SUFFIXES
from afaf.streams.sources.source import reading

HEADER = ["path", "label"]
LOOKING = 8.0  # seconds for checking that the files of a manifest exist; later missing files are found when they are read
SHOWN = 10


def files_below(url: str) -> list[tuple[Place, str]]:
    """(image, class) of a folder behind a URL that has one folder per class, itself or in `train`; sorted."""
    system, root = file_system(url)
    with reading(url, "name a folder that has a folder of images for each class"):
        paths = [str(path) for path in system.find(root)]
    below = [(path, path[len(root.rstrip("/")) :].strip("/").split("/")) for path in paths]
    if any(parts[0] == "train" and len(parts) > 2 for _, parts in below):
        below = [(path, parts[1:]) for path, parts in below if parts[0] == "train"]
    files: list[tuple[Place, str]] = [
        (str(system.unstrip_protocol(path)), parts[0])
        for path, parts in below
        if len(parts) > 1 and Path(path).suffix.lower() in SUFFIXES and not parts[0].startswith(".")
    ]
    if not files:
        raise DataError(f"{url}: no images in class folders: put the images of each class into a folder of its own, {url}/CLASS")
    return sorted(files, key=lambda file: str(file[0]))


def manifest_files(path: Path) -> list[tuple[Place, str]]:
    """(image, class) of a manifest; relative paths are relative to its folder. Missing files raise an error that names them."""
    with reading(path, "a manifest is a CSV file with a path (or URL) and a label in each line"):
        rows = [row for row in csv.reader(read_text(path).splitlines()) if row]
    if rows and [cell.strip().lower() for cell in rows[0]] == HEADER:
        rows = rows[1:]
    wrong = next((i for i, row in enumerate(rows, 1) if len(row) != 2 or not all(cell.strip() for cell in row)), None)
    if wrong is not None or not rows:
        where = f"line {wrong}" if wrong else "it"
        raise DataError(f"{path}: {where} does not have a path and a label: a manifest is a CSV file of both, with or without a header")
    files: list[tuple[Place, str]] = [
        (place.strip() if is_url(place.strip()) else path.parent / place.strip(), label.strip()) for place, label in rows
    ]
    missing, until = [], time.monotonic() + LOOKING
    for place, _ in files:
        if isinstance(place, Path) and not place.exists():
            missing.append(place)
        if time.monotonic() > until:
            break
    if missing:
        listing = "\n".join(f"  {place}" for place in missing[:SHOWN])
        more = f"\n  and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise DataError(f"{path}: {len(missing)} of {len(files)} files are not there:\n{listing}{more}")
    return files
