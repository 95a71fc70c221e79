"""Helpers of `AFAFClassifier`: labels and shapes as scikit-learn gives them, errors as it expects them, progress, locks."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError
from afaf.explain import explained, is_out_of_memory
from afaf.lifelong.head_state import HeadSettings
from afaf.lifelong.life import Label, sorted_labels
from afaf.lifelong.model_store import AnyModel
from afaf.lifelong.training import Progress
from afaf.training.report import EpochReport


class Told(Progress):
    """Reports tasks and epochs on stderr."""

    def __init__(self, verbose: int):
        self.verbose = verbose

    def began(self, task: int, labels: Sequence[Label], epochs: int) -> None:
        if self.verbose:
            names = ", ".join(map(str, labels[:8])) + (" ..." if len(labels) > 8 else "")
            print(f"task {task}: {names}; {epochs} epochs", file=sys.stderr)

    def epoch_ended(self, report: EpochReport) -> None:
        if self.verbose > 1:
            print(f"  epoch {report.epoch + 1}/{report.epochs}: loss {report.loss:.4f}, {report.accuracy:.1f} % right", file=sys.stderr)

    def warned(self, message: str) -> None:
        warnings.warn(message, UserWarning, stacklevel=2)


_locks: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()  # not in the objects: a lock cannot be pickled
_locks_lock = threading.Lock()


def lock_of(model: object) -> threading.RLock:
    with _locks_lock:
        return _locks.setdefault(model, threading.RLock())


@contextlib.contextmanager
def as_value_errors() -> Iterator[None]:
    """Turn errors of a call into ValueError, as scikit-learn expects, and lack of memory into MemoryError."""
    try:
        yield
    except Exception as error:
        known = explained(error)
        if known is None or isinstance(error, (ValueError, MemoryError, OSError)):
            raise
        raise (MemoryError if is_out_of_memory(error) else ValueError)(str(known)) from error


def with_channels(shape: Iterable[Any]) -> tuple[int, ...]:
    """Add a missing channel: (h, w) becomes (h, w, 1)."""
    extents = tuple(int(extent) for extent in shape)
    return (*extents, 1) if len(extents) == 2 else extents


def shape_of(X: NDArray[Any], image_shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape of one image: (features,), or (h, w, c)."""
    shape = tuple(X.shape[1:])
    if image_shape is not None:
        given = with_channels(image_shape)
        if prod(shape) != prod(given):
            raise ValueError(f"image_shape = {image_shape} has {prod(given)} values, but X has {prod(shape)} for an image")
        shape = given
    return with_channels(shape)


def shape_in(model: AnyModel, image_shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The image shape of a model read from a file; None: an encoder takes any, so the first images or `image_shape` decide."""
    if model.identity is not None:
        return with_channels(image_shape) if image_shape is not None else None
    shape = model.spec.input_shape
    return (*shape[1:], shape[0]) if len(shape) == 3 else shape


def check_alike(X: Any, shape: tuple[int, ...]) -> None:
    """Refuse images with the same number of values in another shape, such as channels first."""
    if isinstance(X, np.ndarray) and X.ndim in (3, 4) and len(shape) == 3 and with_channels(X.shape[1:]) != shape:
        raise ValueError(
            f"images of shape {with_channels(X.shape[1:])} for a model of {shape} (height, width, channels): they must be alike"
        )


def as_array(labels: Sequence[Label]) -> NDArray[Any]:
    """Sorted labels; if numbers and strings are mixed, numbers stay numbers and come first."""
    if len({isinstance(label, str) for label in labels}) == 1:
        return np.unique(np.array(labels))
    array = np.empty(len(labels), dtype=object)
    array[:] = sorted_labels(labels)
    return array


def plain_label(label: Any) -> Label:
    """A label as a model file can hold it."""
    if isinstance(label, np.generic):
        label = label.item()
    if not isinstance(label, (str, int, float, bool)):
        raise DataError(f"a label is a number or a text, not {label!r}")
    if isinstance(label, str) and label.endswith("\0"):
        raise DataError(f"a label cannot end in a NUL character, which numpy drops: {label!r}")
    return label


def without_learned(known: Container[Label], images: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Keep samples of classes that are not known yet."""
    new = np.array([plain_label(label) not in known for label in labels.tolist()], dtype=bool)
    if not new.all():
        warnings.warn(f"{int((~new).sum())} samples of classes that were learned already are left out", UserWarning, stacklevel=3)
    return images[new], labels[new]


def of_head(head: HeadSettings) -> dict[str, Any]:
    """The parameters that a model of this head was begun with."""
    return {"method": head.name, "balance": head.balance, "class_sums": head.class_sums}
