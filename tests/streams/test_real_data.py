"""The real datasets: numbers, means and task tables. `AFAF_DATA=FOLDER pytest -m realdata`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from afaf.streams.benchmarks import BENCHMARKS, open_stream
from afaf.streams.sources import SOURCES
from afaf.streams.sources.verify import inspect

pytestmark = pytest.mark.realdata

SIM_CIFAR100 = [name for names in BENCHMARKS["sim-cifar100"].outline().class_names for name in names]


@pytest.mark.parametrize(("name", "train", "test"), [("cifar10", 5000, 1000), ("fashion-mnist", 6000, 1000)])
def test_balanced_datasets(real: Path, name: str, train: int, test: int) -> None:
    found = inspect(SOURCES[name], real)
    assert found.state == "verified"
    assert set(found.counts["train"].values()) == {train}
    assert set(found.counts["test"].values()) == {test}
    assert (found.total("train"), found.total("test")) == (10 * train, 10 * test)


def test_mnist(real: Path) -> None:
    found = inspect(SOURCES["mnist"], real)
    assert found.state == "verified"
    assert tuple(found.counts["train"].values()) == SOURCES["mnist"].counts["train"]
    assert (found.total("train"), found.total("test")) == (60000, 10000)


def test_notmnist(real: Path) -> None:
    found = inspect(SOURCES["notmnist"], real)
    assert found.state == "verified"
    assert (found.total("train"), found.total("test")) == (16853, 1871)
    assert found.counts["test"] == {"A": 188, **dict.fromkeys("BCDEFGHIJ", 187)}
    both = {letter: found.counts["train"][letter] + found.counts["test"][letter] for letter in "ABCDEFGHIJ"}
    assert both == {letter: 1873 if letter in "BCDE" else 1872 for letter in "ABCDEFGHIJ"}


def test_cifar100_has_at_least_the_classes_of_its_stream(real: Path) -> None:
    found = inspect(SOURCES["cifar100"], real)
    assert found.state in ("verified", "partial")
    assert {found.counts["train"][name] for name in SIM_CIFAR100} == {500}
    assert {found.counts["test"][name] for name in SIM_CIFAR100} == {100}
    if found.state == "partial" and len(found.counts["train"]) == 16:
        assert (found.total("train"), found.total("test"), found.note) == (8000, 1600, "16 of 100 classes, verified")


def test_identical_letters_stay_on_one_side(real: Path) -> None:
    opened = SOURCES["notmnist"].records(real)
    images = {part: [image.tobytes() for chunk in opened[part].chunks() for image in chunk] for part in ("train", "test")}
    assert not set(images["train"]) & set(images["test"])
    every = images["train"] + images["test"]
    groups: dict[bytes, set[int]] = {}
    for image, label in zip(every, np.concatenate([opened["train"].labels, opened["test"].labels]), strict=True):
        groups.setdefault(image, set()).add(int(label))
    repeated = [n for n in Counter(every).values() if n > 1]
    assert (sum(n - 1 for n in repeated), len(repeated), max(repeated)) == (492, 236, 254)
    assert sum(len(letters) > 1 for letters in groups.values()) == 2


def test_means_of_cifar10(real: Path) -> None:
    stream = open_stream("split-cifar10", data=real)
    total = sum(task.train.images.sum((0, 1, 2), dtype=np.int64) for task in stream)
    assert total / (50000 * 1024 * 255) == pytest.approx((0.49140, 0.48216, 0.44653), abs=5e-6)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "notmnist"])
def test_means_of_the_grey_ones_are_those_they_are_normalised_with(real: Path, name: str) -> None:
    """Measured on the images as the network sees them, 32x32."""
    source = SOURCES[name]
    images = np.concatenate([source.fit(chunk) for chunk in source.records(real)["train"].chunks()])
    values = images / np.float32(255)
    assert (values.mean(), values.std()) == pytest.approx((source.preparation.mean[0], source.preparation.std[0]), abs=0.01)


@pytest.mark.parametrize("name", ["split-cifar10", "sim-cifar10", "sim-cifar100", "mix"])
def test_streams_are_what_their_outline_says(real: Path, name: str) -> None:
    stream = open_stream(name, data=real)
    assert stream.outline == BENCHMARKS[name].outline()
    for task, recipe in zip(stream, BENCHMARKS[name].tasks, strict=True):
        assert task.class_names == recipe.class_names
        assert [(task.train.labels == c).sum() for c in task.classes] == [
            SOURCES[recipe.source].counts["train"][label] for label in recipe.labels
        ]
        assert len(task.test) == recipe.count("test")
        assert task.train.images.dtype == np.uint8
        assert task.input_shape == (3, 32, 32)
