"""Load the images of a stream's tasks; each image is copied once, into its task's array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from afaf.errors import DataError
from afaf.streams.sources.source import PARTS, Part, Source
from afaf.streams.sources.verify import Labels, Pair, count_classes, shortened, verified
from afaf.streams.tasks import Split


def load_groups(
    source: Source, folder: Path, groups: Sequence[Sequence[int]], *, verify: bool = True, fit: str | None = None
) -> dict[Part, list[Split]]:
    """Return one Split per part and group of labels, in the source's order; labels are renumbered 0, 1, ... within the group.

    `verify` refuses images that are not the published ones. `fit` is a key of `source.fits`.
    """
    opened, wanted = source.records(folder), [label for group in groups for label in group]
    for part in PARTS:
        present = count_classes(source, opened[part])
        if missing := [source.class_names[label] for label in wanted if not present[label]]:
            raise DataError(
                f"{source.title} in {folder} is a partial copy: its {part} part has no images of {shortened(missing)}. "
                f"Run 'afaf data get {source.name}' for all of it"
            )
    splits: dict[Part, list[Split]] = {}
    for part in PARTS:
        records = opened[part]
        pairs = verified(source, folder, part, records, wanted) if verify else records.pairs()
        splits[part] = _split(pairs, records.labels, groups, source, fit)
    return splits


def _split(pairs: Iterator[Pair], all_labels: Labels, groups: Sequence[Sequence[int]], source: Source, fit: str | None) -> list[Split]:
    """Fill one preallocated array per group, chunk by chunk."""
    group_of, number_of = np.full((2, len(source.class_names)), -1)  # by label; its number within the group
    for g, group in enumerate(groups):
        group_of[list(group)], number_of[list(group)] = g, range(len(group))
    sizes = np.bincount(group_of[all_labels] + 1, minlength=len(groups) + 1)[1:]
    splits = [Split(np.empty((size, *source.shape), np.uint8), np.empty(size, np.int64)) for size in sizes]
    filled = [0] * len(groups)
    for images, labels in pairs:
        for g, split in enumerate(splits):
            chosen = np.flatnonzero(group_of[labels] == g)
            if len(chosen):
                at = slice(filled[g], filled[g] + len(chosen))
                np.asarray(split.images)[at] = source.fit(images[chosen], fit)
                split.labels[at] = number_of[labels[chosen]]
                filled[g] = at.stop
    return splits
