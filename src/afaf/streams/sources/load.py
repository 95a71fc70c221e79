"""Load the images of a stream's tasks; each image is copied once, into its task's array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError
from afaf.streams.sources.source import PARTS, Part, Pixels, Records, Source
from afaf.streams.sources.verify import count_classes, shortened, verified
from afaf.streams.tasks import Split


def load_groups(
    source: Source, folder: Path, groups: Sequence[Sequence[int]], *, verify: bool = True, fit: str | None = None
) -> dict[Part, list[Split]]:
    """Return one Split per part and group of labels, in the source's order; labels are renumbered 0, 1, ... within the group.

    `verify` refuses images that are not the published ones. `fit` is a key of `source.fits`.
    """
    opened = source.records(folder)
    for part in PARTS:
        _check_present(source, folder, part, opened[part], groups)
    return {part: _load_part(source, folder, part, opened[part], groups, verify, fit) for part in PARTS}


def _load_part(
    source: Source, folder: Path, part: Part, records: Records, groups: Sequence[Sequence[int]], verify: bool, fit: str | None
) -> list[Split]:
    arrays = _GroupArrays(records.labels, groups, source)
    pairs = verified(source, folder, part, records, [c for group in groups for c in group]) if verify else records.pairs()
    for images, labels in pairs:
        arrays.add(partial(source.fit, way=fit), images, labels)
    return arrays.splits()


def _check_present(source: Source, folder: Path, part: Part, records: Records, groups: Sequence[Sequence[int]]) -> None:
    present = count_classes(source, records)
    missing = [source.class_names[c] for group in groups for c in group if not present[c]]
    if missing:
        raise DataError(
            f"{source.title} in {folder} is a partial copy: its {part} part has no images of {shortened(missing)}. "
            f"Run 'afaf data get {source.name}' for all of it"
        )


class _GroupArrays:
    """One preallocated array per group, filled chunk by chunk."""

    def __init__(self, labels: NDArray[np.uint8], groups: Sequence[Sequence[int]], source: Source):
        n_classes = len(source.class_names)
        self._group = np.full(n_classes, -1)  # by label
        self._number = np.zeros(n_classes, np.int64)  # by label: its number within the group
        for g, group in enumerate(groups):
            for number, label in enumerate(group):
                self._group[label], self._number[label] = g, number
        sizes = np.bincount(self._group[labels] + 1, minlength=len(groups) + 1)[1:]
        self._images = [np.empty((size, *source.shape), np.uint8) for size in sizes]
        self._labels = [np.empty(size, np.int64) for size in sizes]
        self._filled = [0] * len(groups)

    def add(self, fit: Callable[[Pixels], Pixels], images: Pixels, labels: NDArray[np.uint8]) -> None:
        group_of = self._group[labels]
        for g in range(len(self._images)):
            chosen = np.flatnonzero(group_of == g)
            if len(chosen):
                at = slice(self._filled[g], self._filled[g] + len(chosen))
                self._images[g][at] = fit(images[chosen])
                self._labels[g][at] = self._number[labels[chosen]]
                self._filled[g] = at.stop

    def splits(self) -> list[Split]:
        return [Split(images, labels) for images, labels in zip(self._images, self._labels, strict=True)]
