"""Streams from arrays: tasks, labels, splits, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from afaf.errors import DataError
from afaf.streams.tasks import Split, Stream, Task


def arrays(n: int = 60, classes: int = 6, shape: tuple[int, ...] = (8, 8), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), np.arange(n) % classes


def test_classes_arrive_in_order_and_images_follow_them() -> None:
    x, y = arrays()
    stream = Stream.from_arrays(x, y, class_order=[[5, 0], [3], [1, 2, 4]])
    assert len(stream) == 3
    assert [task.classes for task in stream] == [(0, 1), (2,), (3, 4, 5)]
    assert stream.class_order == ("5", "0", "3", "1", "2", "4")
    assert stream.label_map == {5: 0, 0: 1, 3: 2, 1: 3, 2: 4, 4: 5}
    by_bytes = {image.tobytes(): int(label) for image, label in zip(x, y, strict=True)}
    for task in stream:
        for split in (task.train, task.test):
            for image, c in zip(split.images, split.labels, strict=True):
                assert stream.label_map[by_bytes[image.tobytes()]] == c


def test_every_image_is_used_once_and_the_split_is_stratified_and_seeded() -> None:
    x, y = arrays(n=120)
    stream = Stream.from_arrays(x, y, classes_per_task=3, test_fraction=0.25)
    parts = [split.images for task in stream for split in (task.train, task.test)]
    assert sorted(image.tobytes() for part in parts for image in part) == sorted(image.tobytes() for image in x)
    for task in stream:
        assert np.bincount(task.test.labels)[list(task.classes)].tolist() == [5, 5, 5]
    again = Stream.from_arrays(x, y, classes_per_task=3, test_fraction=0.25)
    other = Stream.from_arrays(x, y, classes_per_task=3, test_fraction=0.25, seed=1)
    assert np.array_equal(stream[0].test.images, again[0].test.images)
    assert not np.array_equal(stream[0].test.images, other[0].test.images)


def test_validation_is_cut_off_the_training_images_alone() -> None:
    x, y = arrays(n=120)
    stream = Stream.from_arrays(x, y)
    cut = stream.with_validation(0.25)
    for task, whole in zip(cut, stream, strict=True):
        assert task.validation is not None
        assert np.array_equal(task.test.images, whole.test.images)
        joined = np.concatenate([task.train.images, task.validation.images])
        assert sorted(i.tobytes() for i in joined) == sorted(i.tobytes() for i in whole.train.images)
        assert np.bincount(task.validation.labels)[list(task.classes)].tolist() == [4, 4]
    with pytest.raises(DataError, match="no validation part"):
        stream[0].held_out("validation")


def test_at_most_so_many_images_of_each_class_in_each_part() -> None:
    x, y = arrays(n=120)
    cut = Stream.from_arrays(x, y).with_validation(0.25).with_at_most(3)
    for task in cut:
        assert task.validation is not None
        for split in (task.train, task.test, task.validation):
            assert np.bincount(split.labels)[list(task.classes)].tolist() == [3, 3]
    for none in (0, -1):
        with pytest.raises(DataError, match="at least 1 image of each class"):
            cut.with_at_most(none)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3), (20,)])
def test_grey_colour_and_vectors(shape: tuple[int, ...]) -> None:
    x, y = arrays(shape=shape)
    stream = Stream.from_arrays(x.astype(np.float64), y)
    expected = {2: (1, 8, 8), 3: (3, 8, 8), 1: (20,)}[len(shape)]
    assert stream.outline.input_shape == expected
    assert stream[0].train.images.dtype == np.float32


def test_a_beginning_of_a_stream_is_a_stream() -> None:
    x, y = arrays()
    stream = Stream.from_arrays(x, y)
    assert stream[:2].outline.n_classes == 4
    assert stream[:2].label_map == {0: 0, 1: 1, 2: 2, 3: 3}
    with pytest.raises(DataError, match=r"stream\[:n\]"):
        stream[1:]


def test_labels_of_any_kind() -> None:
    x, y = arrays(classes=2)
    stream = Stream.from_arrays(x, np.array(["dog", "cat"])[y])
    assert stream.class_order == ("cat", "dog")
    assert stream.label_map == {"cat": 0, "dog": 1}


def test_what_is_refused() -> None:
    x, y = arrays()
    with pytest.raises(DataError, match="class '1' is in task 1 and again in task 2"):
        Stream.from_arrays(x, y, class_order=[[0, 1], [1, 2]])
    with pytest.raises(DataError, match="task 2 has no samples of class '77'"):
        Stream.from_arrays(x, y, class_order=[[0, 1], [77]])
    with pytest.raises(DataError, match="no classes"):
        Stream.from_arrays(x, y, class_order=[[0], []])
    broken = x.astype(np.float32)
    broken[7, 3, 3] = np.nan
    with pytest.raises(DataError, match=r"NaN or infinite pixels .*number 7"):
        Stream.from_arrays(broken, y)
    with pytest.raises(DataError, match="60 images but 59 labels"):
        Stream.from_arrays(x, y[:-1])
    with pytest.raises(DataError, match="must match"):
        Stream.from_arrays(x, y, x_test=x[:, :4], y_test=y)
    with pytest.raises(DataError, match="together"):
        Stream.from_arrays(x, y, x_test=x)
    with pytest.raises(DataError, match="not of shape"):
        Stream.from_arrays(x[0, 0], y[:8])
    with pytest.raises(DataError, match="at least 2"):
        Stream.from_arrays(x[:6], y[:6])


def test_numbers_of_any_kind_are_plain_ones_in_a_task() -> None:
    split = Split(np.zeros((2, 4, 4, 1), np.uint8), np.arange(2))
    task = Task(np.int64(1), list(np.unique(split.labels)), np.array(["a", "b"]), split, split)  # type: ignore[arg-type]
    assert Stream("s", [task])[0].classes == (0, 1)
    assert [type(number) for number in (task.number, *task.classes, *task.class_names)] == [int, int, int, str, str]


def test_a_stream_checks_its_tasks() -> None:
    x, _ = arrays()
    images = x[:, :, :, None]
    split = Split(images[:2], np.array([0, 1]))
    empty = Split(images[:0], np.array([], dtype=np.int64))
    task = Task(1, (0, 1), ("a", "b"), split, split)
    with pytest.raises(DataError, match="task 2: class 'a' is already in task 1"):
        Stream("s", [task, Task(2, (0, 2), ("a", "c"), split, split)])
    with pytest.raises(DataError, match="has no training samples"):
        Stream("s", [Task(1, (0, 1), ("a", "b"), empty, split)])
    with pytest.raises(DataError, match="has no test samples"):
        Stream("s", [Task(1, (0, 1), ("a", "b"), split, empty)])
    with pytest.raises(DataError, match="no training samples of class 'c'"):
        Stream("s", [Task(1, (0, 1, 2), ("a", "b", "c"), split, split)])
    small = Split(images[:2, :4], np.array([2, 3]))
    with pytest.raises(DataError, match="all must be alike"):
        Stream("s", [task, Task(2, (2, 3), ("c", "d"), small, small)])
    for number in (0, 2):
        with pytest.raises(DataError, match=f"task 1: .*{number}; tasks are numbered from 1"):
            Stream("s", [replace(task, number=number)])
    with pytest.raises(DataError, match="2 classes but 1 names"):
        Stream("s", [replace(task, class_names=("a",))])
