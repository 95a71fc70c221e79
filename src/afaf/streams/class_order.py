"""The order in which classes arrive: the labels of each task, from a list, a text, a file or a seed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afaf.bounds import shown
from afaf.errors import ConfigError, DataError, unknown
from afaf.files import read_text
from afaf.streams.sources.source import reading
from afaf.streams.sources.verify import shortened
from afaf.streams.tasks import sorted_labels

SEED = "seed:"
SEEDS = 1 << 32  # the number of seeds of numpy's permutations
WAYS = "an order is classes separated by commas, a file with the classes of a task in each line, or seed:7 for a random one"


def one_order(order: Any, class_order: Any) -> Any:
    """Return the order given under either name; None if there is none."""
    if order and class_order is not None:
        raise ConfigError("give class_order or `order`, not both")
    return order or class_order


def in_own_labels(order: Sequence[Any] | str | Path | None, labels: NDArray[Any], names: Mapping[str, Any] = {}) -> list[Any] | None:
    """Convert an order to the labels of the data; `names` are other names for them."""
    if order is None:
        return None
    seed = seed_of(order)
    if seed is not None:
        return permuted(sorted_labels(labels), seed)
    if isinstance(order, (str, Path)):
        order = read_order(order)
    own = {label: label for label in labels.tolist()}
    by_text = {**{str(label): label for label in own}, **names}

    def label(item: Any) -> Any:
        return own[item] if isinstance(item, Hashable) and item in own else by_text.get(str(item), item)

    return [[label(i) for i in group] if isinstance(group, (list, tuple, np.ndarray)) else label(group) for group in order]


def seed_of(order: Any) -> int | None:
    """Return the number of `seed:7`; None for an order that lists the classes."""
    if not isinstance(order, str) or not order.startswith(SEED) or "," in order:
        return None
    digits = order.removeprefix(SEED)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(SEEDS)) and int(digits) < SEEDS):
        raise ConfigError(f"stream.order={shown(order)}: write a whole number below 2**32 after seed:, for example seed:7")
    return int(digits)


def permuted(labels: Sequence[Any], seed: int) -> list[Any]:
    """Return the labels in numpy's permutation of this seed, as others publish it; it is the same in every version of numpy."""
    return [labels[i] for i in np.random.RandomState(seed).permutation(len(labels))]


def rearranged(stream: str, tasks: Sequence[Sequence[int]], class_names: Sequence[str], order: Any) -> list[list[int]]:
    """Return the tasks of a built-in stream with its classes in another order: each class once, tasks of the same sizes.

    Tasks are lists of labels; `class_names` go by label.
    """
    names = {class_names[label]: label for task in tasks for label in task}
    groups = in_own_labels(order, np.array(list(names.values())), names) or []
    arriving = [label for group in groups for label in (group if isinstance(group, list) else [group])]
    where = f"stream.order={order}" if isinstance(order, (str, Path)) and "," not in str(order) else "stream.order"
    _check_each_once(where, stream, names, arriving)
    sizes = [len(task) for task in tasks]
    given = [len(group) if isinstance(group, list) else 1 for group in groups]
    if any(isinstance(group, list) for group in groups) and given != sizes:
        raise ConfigError(
            f"{where}: the tasks of '{stream}' have {shortened([str(size) for size in sizes])} classes, these have "
            f"{shortened([str(size) for size in given])}: an order says which classes are in a task, not how many"
        )
    rest = iter(arriving)
    return [list(islice(rest, size)) for size in sizes]


def _check_each_once(where: str, stream: str, names: Mapping[str, int], arriving: Sequence[Any]) -> None:
    """Raise ConfigError unless every class of the stream arrives, once, and no other."""
    labels = list(names.values())
    strange = [item for item in arriving if not isinstance(item, int) or item not in labels]
    if strange:
        hint = unknown(f"class of {stream}", str(strange[0]), names)
        raise ConfigError(f"{where}: {hint} (`afaf streams {stream}` shows all of them)")
    counts = Counter(arriving)
    repeated = [name for name, label in names.items() if counts[label] > 1]
    if repeated:
        raise ConfigError(f"{where} has {shortened(repeated)} more than once: a class arrives in one task; name it once")
    missing = [name for name, label in names.items() if label not in counts]
    if missing:
        raise ConfigError(f"{where} lacks {shortened(missing)}: name each of the {len(names)} classes of '{stream}'")


def read_order(order: str | Path) -> list[Any]:
    """Read an order file: one task per line, classes separated by commas, comments after '#'. A string with commas is a flat list."""
    path = Path(order).expanduser()
    if isinstance(order, str) and "," in order and not os.path.isfile(path):  # False for a name too long for a file system
        return _split(order)
    if not os.path.exists(path):
        raise DataError(f"{path}: no such file: {WAYS}")
    with reading(path, "an order file is plain text, one task per line"):
        text = read_text(path)
    tasks = [_split(line.partition("#")[0]) for line in text.splitlines()]
    tasks = [task for task in tasks if task]
    if not tasks:
        raise DataError(f"{path}: no classes: write one task per line, classes separated by commas")
    return tasks


def _split(line: str) -> list[str]:
    return [name.strip() for name in line.split(",") if name.strip()]
