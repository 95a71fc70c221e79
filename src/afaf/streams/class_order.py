"""The user's class order: the labels of each task, from a list, a text or a file."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError
from afaf.files import read_text
from afaf.streams.sources.source import reading


def in_own_labels(order: Sequence[Any] | str | Path | None, labels: NDArray[Any]) -> list[Any] | None:
    """Convert the text of an order file or a command line to the user's own labels."""
    if order is None:
        return None
    if isinstance(order, (str, Path)):
        order = read_order(order)
    by_text = {str(label): label for label in labels.tolist()}
    own = set(by_text.values())

    def label(item: Any) -> Any:
        return item if isinstance(item, Hashable) and item in own else by_text.get(str(item), item)

    return [[label(i) for i in group] if isinstance(group, (list, tuple, np.ndarray)) else label(group) for group in order]


def read_order(order: str | Path) -> list[Any]:
    """Read an order file: one task per line, classes separated by commas, comments after '#'. A string with commas is a flat list."""
    path = Path(order).expanduser()
    if isinstance(order, str) and "," in order and not os.path.isfile(path):  # False for a name too long for a file system
        return _split(order)
    with reading(path, "an order file is plain text, one task per line"):
        text = read_text(path).removeprefix("\ufeff")
    tasks = [_split(line.partition("#")[0]) for line in text.splitlines()]
    tasks = [task for task in tasks if task]
    if not tasks:
        raise DataError(f"{path}: no classes: write one task per line, classes separated by commas")
    return tasks


def _split(line: str) -> list[str]:
    return [name.strip() for name in line.split(",") if name.strip()]
