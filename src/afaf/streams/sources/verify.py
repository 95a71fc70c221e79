"""Check that images are the published ones, by SHA-256 of the decoded pixels, independent of the file format.

The digest of a class, "train/cat" in digests.json, is that of the sorted SHA-256s of its images: it does not depend on their order, nor on
other classes, so that a copy without some classes can be verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError, WriteError
from afaf.files import make_folders, read_bytes, write_whole
from afaf.files.read import TEXT_LIMIT
from afaf.streams.sources.source import PARTS, Part, Pixels, Records, Source, cache_folder

Labels = NDArray[np.uint8]
Pair = tuple[Pixels, Labels]
State = Literal["missing", "verified", "partial", "damaged"]


class ClassDigests:
    """The running digest of each wanted class, independent of the order of its images."""

    def __init__(self, wanted: Sequence[int]) -> None:
        self._seen: dict[int, list[bytes]] = {c: [] for c in wanted}

    def update(self, images: Pixels, labels: Labels) -> None:
        for image, label in zip(np.ascontiguousarray(images), labels.tolist(), strict=True):
            if label in self._seen:
                self._seen[label].append(hashlib.sha256(image.data).digest())

    def hexdigests(self) -> dict[int, str]:
        return {c: hashlib.sha256(b"".join(sorted(seen))).hexdigest() for c, seen in self._seen.items()}


def verified(source: Source, folder: Path, part: Part, records: Records, wanted: Sequence[int]) -> Iterator[Pair]:
    """Yield the chunks of the records; after the last, raise DataError if the wanted classes are not as published."""
    digests, names = ClassDigests(wanted), source.class_names
    for images, labels in records.pairs():
        digests.update(images, labels)
        yield images, labels
    different = [names[c] for c, digest in digests.hexdigests().items() if digest != source.digests[f"{part}/{names[c]}"]]
    if different:
        skipped = f" ({len(records.skipped)} unreadable: {shortened(records.skipped)})" if records.skipped else ""
        raise DataError(
            f"{source.place(folder) or folder}: the {part} images of {shortened(different)} are not those published as "
            f"{source.title}{skipped}: run 'afaf data get {source.name}' to replace the copy"
        )


def count_classes(source: Source, records: Records) -> NDArray[np.intp]:
    return np.bincount(records.labels, minlength=len(source.class_names))


def shortened(names: Sequence[str], at_most: int = 10) -> str:
    """Join the names; beyond `at_most` only their number is given."""
    rest = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class Inspection:
    """The state of a dataset on disk.

    `verified`: complete and as published. `partial`: classes are missing, the others are as published. `damaged`: `note` says why.
    """

    name: str
    title: str
    state: State
    place: str | None = None
    size: int = 0  # bytes on disk
    counts: dict[Part, dict[str, int]] = field(default_factory=dict)  # images by class, without missing classes
    skipped: tuple[str, ...] = ()
    note: str = ""

    def total(self, part: Part) -> int:
        return sum(self.counts.get(part, {}).values())


def inspect(source: Source, folder: Path) -> Inspection:
    """Read and verify all files of a dataset; never raises for bad data."""
    place = source.place(folder)
    if source.needs_files and place is None:
        return Inspection(source.name, source.title, "missing", note=f"afaf data get {source.name}")
    where, size = str(place) if place else "with scikit-learn", sum(path.stat().st_size for path in source.files(folder))
    try:
        opened = source.records(folder)
    except DataError as error:
        return Inspection(source.name, source.title, "damaged", where, size, note=str(error))
    counts = {part: count_classes(source, opened[part]) for part in PARTS}
    problems = []
    for part in PARTS:
        try:
            present = np.flatnonzero(counts[part]).tolist()
            deque(verified(source, folder, part, opened[part], present), maxlen=0)
            problems += [] if present else [f"the {part} part has no images"]
        except DataError as error:
            problems.append(str(error))
    complete, all_classes = int(((counts["train"] > 0) & (counts["test"] > 0)).sum()), len(source.class_names)
    state: State = "damaged" if problems else "verified" if complete == all_classes else "partial"
    note = "; ".join(problems) or ("" if state == "verified" else f"{complete} of {all_classes} classes, verified")
    return Inspection(
        source.name,
        source.title,
        state,
        where,
        size,
        {part: {source.class_names[c]: int(n) for c, n in enumerate(counts[part]) if n} for part in PARTS},
        opened["train"].skipped,
        note,
    )


# Inspections are cached as long as the files do not change, so that `afaf data list` answers at once. The cache lies in the cache folder,
# since the data folder may be read-only; losing it costs only time.


def inspect_remembered(source: Source, folder: Path) -> Inspection:
    """Return the last inspection if the files have not changed, else a new one."""
    try:
        note = json.loads(read_bytes(_note(source, folder), TEXT_LIMIT))
        if note["files"] == _fingerprint(source, folder):
            fields = note["inspection"]
            return Inspection(**{**fields, "skipped": tuple(fields["skipped"])})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # missing, damaged, or written by another version
        pass
    return inspect_anew(source, folder)


def inspect_anew(source: Source, folder: Path) -> Inspection:
    """Inspect the files and cache the result."""
    files, path = _fingerprint(source, folder), _note(source, folder)
    inspection = inspect(source, folder)
    if files is not None:
        with contextlib.suppress(WriteError):  # works without a cache too
            make_folders(path.parent)
            write_whole(path, json.dumps({"files": files, "inspection": asdict(inspection)}).encode())
    return inspection


def _note(source: Source, folder: Path) -> Path:
    where = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return cache_folder() / "inspections" / f"{source.name}-{where[:16]}.json"


def _fingerprint(source: Source, folder: Path) -> str | None:
    """Hash the names, sizes and times of the files, and the digests they are compared with."""
    if source.place(folder) is None:
        return None
    seen = [(path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns) for path in source.files(folder)]
    return hashlib.sha256(repr((seen, sorted(source.digests.items()))).encode()).hexdigest()
