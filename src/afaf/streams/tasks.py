"""A stream is a sequence of tasks; each task adds new classes, with training and test images.

Class ids count classes in order of arrival; a class id is also the index of the network's output.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from afaf.errors import DataError
from afaf.randomness import generator

Augment = Literal["none", "crop-flip", "resized-crop-flip"]  # crops of the reflect-padded image, or of 1/4 to all of it, enlarged
Shape = tuple[int, ...]  # (channels, height, width) of an image, (features,) of a vector


@dataclass(frozen=True)
class Preparation:
    """Normalisation of stored pixels: (pixel - mean) / std per channel, uint8 pixels divided by 255 first.

    `channels` is how often a grey image is repeated; `augment` applies to training images only.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    channels: int | None = None
    augment: Augment = "none"

    @classmethod
    def measured(cls, images: NDArray[Any] | StoredImages, augment: Augment = "none") -> Preparation:
        """Compute mean and standard deviation of the images, per channel (of vectors: over all features).

        For uint8 from a histogram, which needs no float copy of the images.
        """
        channels = images.shape[3] if images.ndim == 4 else 1
        if images.dtype == np.uint8:
            values, counts = np.arange(256) / 255, np.zeros((channels, 256), np.int64)
            for start in range(0, len(images), 1024):
                pixels = np.asarray(images[start : start + 1024]).reshape(-1, channels)
                counts += [np.bincount(channel, minlength=256) for channel in pixels.T]
            shares = [count / count.sum() for count in counts]
            mean = [float(share @ values) for share in shares]
            std = [float(np.sqrt(share @ (values - m) ** 2)) for share, m in zip(shares, mean, strict=True)]
        else:
            pixels = np.asarray(images).reshape(-1, channels).astype(np.float64)
            mean, std = pixels.mean(0).tolist(), pixels.std(0).tolist()
        return cls(tuple(mean), tuple(s if s > 0 else 1.0 for s in std), augment=augment)


class StoredImages:
    """Some images of a memory-mapped file, (n, height, width, channels). Selecting images copies nothing; numpy reads them."""

    def __init__(self, file: NDArray[np.uint8], index: NDArray[np.int64]):
        self.file, self.index = file, index
        self.shape: tuple[int, ...] = (len(index), *file.shape[1:])
        self.dtype, self.ndim = file.dtype, file.ndim

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __getitem__(self, chosen: slice | NDArray[Any]) -> StoredImages:
        return StoredImages(self.file, self.index[chosen])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        pixels: NDArray[Any] = self.file[self.index]
        return pixels if dtype is None else pixels.astype(dtype)


@dataclass(frozen=True)
class Split:
    """Images (n, height, width, channels), uint8 or float32, or vectors (n, features), and their global class ids.

    Images of a folder that is larger than memory are read from a file when they are used.
    """

    images: NDArray[Any] | StoredImages
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def of_classes(self, *classes: int) -> Split:
        return self.take(np.flatnonzero(np.isin(self.labels, classes)))

    def take(self, index: NDArray[Any]) -> Split:
        return Split(self.images[index], self.labels[index])


@dataclass(frozen=True)
class Task:
    """One task: its number in the stream (from 1), its classes and its data."""

    number: int
    classes: tuple[int, ...]
    class_names: tuple[str, ...]
    train: Split
    test: Split
    preparation: Preparation = field(default_factory=Preparation)
    validation: Split | None = None

    def __post_init__(self) -> None:
        """Convert to plain int, str and tuple: they key random draws and are written to files."""
        object.__setattr__(self, "number", int(self.number))
        object.__setattr__(self, "classes", tuple(int(c) for c in self.classes))
        object.__setattr__(self, "class_names", tuple(str(name) for name in self.class_names))

    @property
    def input_shape(self) -> Shape:
        return input_shape(self.train.images, self.preparation)

    def held_out(self, which: Literal["test", "validation"]) -> Split:
        """Return the part that a model is evaluated on."""
        if which == "test":
            return self.test
        if self.validation is None:
            raise DataError(f"task {self.number} has no validation part: use stream.with_validation(0.1) or set run.validation")
        return self.validation


@dataclass(frozen=True)
class Outline:
    """A stream without its data: enough to build the network, check the capacity and compute the costs."""

    name: str
    input_shape: Shape
    class_names: tuple[tuple[str, ...], ...]
    train_counts: tuple[int, ...]

    @property
    def classes_per_task(self) -> tuple[int, ...]:
        return tuple(len(names) for names in self.class_names)

    @property
    def n_classes(self) -> int:
        return sum(self.classes_per_task)

    def __len__(self) -> int:
        return len(self.class_names)


class Stream(Sequence[Task]):
    """Tasks in order. `stream[i]` is a task, `stream[:n]` a shorter stream; `label_map` maps the user's labels to class ids."""

    def __init__(self, name: str, tasks: Sequence[Task], label_map: Mapping[Hashable, int] | None = None):
        self.name = name
        self.source: str | None = None  # the name to open it by again, if it has one
        self.tasks = tuple(tasks)
        names = [name for task in self.tasks for name in task.class_names]
        self.label_map: dict[Hashable, int] = dict(label_map) if label_map is not None else {name: c for c, name in enumerate(names)}
        check_tasks(self)

    def __len__(self) -> int:
        return len(self.tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Stream: ...
    def __getitem__(self, index: int | slice) -> Task | Stream:
        if isinstance(index, int):
            return self.tasks[index]
        if index.start not in (None, 0) or index.step not in (None, 1):
            raise DataError("a slice of a stream must start with its first task: stream[:n]")
        tasks = self.tasks[index]
        n_classes = sum(len(task.classes) for task in tasks)
        return Stream(self.name, tasks, {label: c for label, c in self.label_map.items() if c < n_classes})

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {len(self)} tasks, {self.outline.n_classes} classes, input {self.outline.input_shape})"

    @property
    def class_order(self) -> tuple[str, ...]:
        """Class names by class id."""
        return tuple(name for task in self.tasks for name in task.class_names)

    @property
    def outline(self) -> Outline:
        return Outline(
            self.name,
            self.tasks[0].input_shape,
            tuple(task.class_names for task in self.tasks),
            tuple(len(task.train) for task in self.tasks),
        )

    def with_validation(self, fraction: float, seed: int = 0) -> Stream:
        """Return a copy that holds out a stratified part of each task's training images for validation."""
        tasks = []
        for task in self.tasks:
            kept, held_out = stratified(task.train.labels, fraction, seed, "validation")
            tasks.append(replace(task, train=task.train.take(kept), validation=task.train.take(held_out)))
        return Stream(self.name, tasks, self.label_map)

    def with_at_most(self, images: int) -> Stream:
        """Return a copy with at most `images` images per class in each part, for quick trials."""
        if images < 1:
            raise DataError(f"a stream needs at least 1 image of each class, not {images}")
        return Stream(self.name, [_cut_to(task, images) for task in self.tasks], self.label_map)

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike | StoredImages,
        y: ArrayLike,
        *,
        x_test: ArrayLike | StoredImages | None = None,
        y_test: ArrayLike | None = None,
        test_fraction: float = 0.2,
        classes_per_task: int = 2,
        class_order: Sequence[Any] | None = None,
        class_names: Mapping[Any, str] | None = None,
        preparation: Preparation | None = None,
        augment: Augment = "none",
        name: str = "arrays",
        seed: int = 0,
    ) -> Stream:
        """Build a stream from images (n, h, w), (n, h, w, c) or vectors (n, features), with any hashable labels.

        `class_order` lists the labels in order of arrival, flat (cut into `classes_per_task`) or one list per task; by default the
        labels are sorted. Without `x_test`, a stratified, seeded part of each class is held out. Without `preparation`, pixels are
        normalised with the mean and standard deviation of the first task's training images.
        """
        images, labels = x if isinstance(x, StoredImages) else checked_images(x, name), checked_labels(y)
        if len(images) != len(labels):
            raise DataError(f"{len(images)} images but {len(labels)} labels: give one label per image")
        if (x_test is None) != (y_test is None):
            raise DataError("give x_test and y_test together, or neither")
        groups = group_classes(labels, classes_per_task, class_order)
        label_map: dict[Hashable, int] = {label: i for i, label in enumerate(label for group in groups for label in group)}
        names = class_names or {}
        ids = _ids(labels, label_map)
        if x_test is None or y_test is None:
            train_index, test_index = stratified(ids, test_fraction, seed, "test")
            train, test = Split(images[train_index], ids[train_index]), Split(images[test_index], ids[test_index])
        else:
            test_images = x_test if isinstance(x_test, StoredImages) else checked_images(x_test, f"{name} (test)")
            test_labels = checked_labels(y_test)
            if test_images.shape[1:] != images.shape[1:] or test_images.dtype != images.dtype:
                raise DataError(
                    f"test images are {test_images.shape[1:]} {test_images.dtype}, "
                    f"training images {images.shape[1:]} {images.dtype}: they must match"
                )
            train, test = Split(images, ids), Split(test_images, _ids(test_labels, label_map))
        tasks, first = [], 0
        for number, group in enumerate(groups, 1):
            classes = tuple(range(first, first + len(group)))
            first += len(group)
            of_task = train.of_classes(*classes)
            if preparation is None:
                preparation = Preparation.measured(of_task.images, augment)
            task_names = tuple(names.get(label, str(label)) for label in group)
            tasks.append(Task(number, classes, task_names, of_task, test.of_classes(*classes), preparation))
        return cls(name, tasks, label_map)


def input_shape(images: NDArray[Any] | StoredImages, preparation: Preparation) -> Shape:
    if images.ndim == 2:
        return (images.shape[1],)
    _, height, width, channels = images.shape
    return (preparation.channels or channels, height, width)


def checked_images(x: ArrayLike, name: str) -> NDArray[Any]:
    """Return images as (n, h, w, c), vectors as (n, features); uint8 is kept, other types become float32, which must be finite."""
    images = np.asarray(x)
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim not in (2, 4):
        raise DataError(f"{name}: images must be (n, h, w), (n, h, w, c) or vectors (n, features), not of shape {images.shape}")
    if images.size == 0:
        raise DataError(f"{name}: no images to learn from: their shape is {images.shape}")
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind not in "biuf":
        raise DataError(f"{name}: images must be numbers, not {images.dtype}")
    images = images.astype(np.float32)
    finite = np.isfinite(images).reshape(len(images), -1).all(1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise DataError(f"{name}: {len(bad)} image(s) hold NaN or infinite pixels (the first is number {bad[0]}): remove or repair them")
    return images


def checked_labels(y: ArrayLike) -> NDArray[Any]:
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise DataError(f"labels must be one per image, a vector, not of shape {labels.shape}")
    return labels


def sorted_labels(labels: NDArray[Any]) -> list[Any]:
    """Return each label that occurs, once; numbers and words may be mixed."""
    return sorted(set(labels.tolist()), key=lambda label: (str(type(label)), label))


def group_classes(labels: NDArray[Any], classes_per_task: int, class_order: Sequence[Any] | None) -> list[list[Hashable]]:
    """Return the labels of each task; every label of `class_order` must occur in the data."""
    present = sorted_labels(labels)
    if classes_per_task < 1:
        raise DataError(f"classes_per_task must be at least 1, not {classes_per_task}")
    ordered: list[Any] = list(present if class_order is None else class_order)
    nested = bool(ordered) and all(isinstance(group, (list, tuple, np.ndarray)) for group in ordered)
    groups: list[list[Hashable]] = (
        [list(group) for group in ordered]
        if nested
        else [ordered[i : i + classes_per_task] for i in range(0, len(ordered), classes_per_task)]
    )
    if not groups:
        raise DataError("a stream needs at least one class: no labels were given")
    seen: dict[Hashable, int] = {}
    for number, group in enumerate(groups, 1):
        if not group:
            raise DataError(f"task {number} has no classes: give it some or leave it out")
        for label in group:
            if label in seen:
                raise DataError(f"class '{label}' is in task {seen[label]} and again in task {number}: a class belongs to one task")
            if label not in present:
                raise DataError(f"task {number} has no samples of class '{label}': no label equals it")
            seen[label] = number
    return groups


def stratified(labels: NDArray[Any], fraction: float, seed: int, purpose: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Split the indices of each class at random by `fraction`; return those that remain and those held out, at least 1 per class."""
    if not 0 < fraction < 1:
        raise DataError(f"the {purpose} part must be a fraction between 0 and 1, not {fraction}")
    held_out = []
    for c in sorted(set(labels[labels >= 0].tolist())):
        index = np.flatnonzero(labels == c)
        if len(index) < 2:
            raise DataError(f"class {c} has {len(index)} image(s): at least 2 are needed to hold out a {purpose} part")
        count = min(max(1, round(fraction * len(index))), len(index) - 1)
        order = torch.randperm(len(index), generator=generator(seed, purpose, c)).numpy()
        held_out.append(index[order[:count]])
    chosen = np.sort(np.concatenate(held_out))
    return np.setdiff1d(np.flatnonzero(labels >= 0), chosen), chosen


def check_tasks(stream: Stream) -> None:
    """Check that a stream is consistent; the error names the task."""
    if not stream.tasks:
        raise DataError(f"stream '{stream.name}' has no tasks")
    expected = 0
    owner: dict[int, int] = {}
    for number, task in enumerate(stream.tasks, 1):
        where = f"stream '{stream.name}', task {number}"
        if task.number != number:
            raise DataError(f"{where}: its number is {task.number}; tasks are numbered from 1, in order")
        if len(task.classes) != len(task.class_names):
            raise DataError(f"{where}: {len(task.classes)} classes but {len(task.class_names)} names: give one name per class")
        for c, name in zip(task.classes, task.class_names, strict=True):
            if c in owner:
                raise DataError(f"{where}: class '{name}' is already in task {owner[c]}: a class belongs to one task")
            owner[c] = task.number
        if task.classes != tuple(range(expected, expected + len(task.classes))):
            raise DataError(f"{where}: class ids must continue from {expected} in order of arrival, not {task.classes}")
        expected += len(task.classes)
        for part, split in (("training", task.train), ("test", task.test)):
            if len(split) == 0:
                raise DataError(f"{where} has no {part} samples")
            if not set(np.unique(split.labels).tolist()) <= set(task.classes):
                raise DataError(f"{where}: {part} labels name classes of other tasks")
        missing = set(task.classes) - set(np.unique(task.train.labels).tolist())
        if missing:
            raise DataError(f"{where} has no training samples of class '{stream.class_order[min(missing)]}'")
        if task.input_shape != stream.tasks[0].input_shape:
            raise DataError(f"{where}: images of shape {task.input_shape}, but task 1 has {stream.tasks[0].input_shape}: all must be alike")


def _ids(labels: NDArray[Any], label_map: Mapping[Hashable, int]) -> NDArray[np.int64]:
    return np.array([label_map.get(label, -1) for label in labels.tolist()], dtype=np.int64)


def _cut_to(task: Task, images: int) -> Task:
    def cut(split: Split) -> Split:
        first = [np.flatnonzero(split.labels == c)[:images] for c in task.classes]
        return split.take(np.sort(np.concatenate(first)))

    validation = None if task.validation is None else cut(task.validation)
    return replace(task, train=cut(task.train), test=cut(task.test), validation=validation)
