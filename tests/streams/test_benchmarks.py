"""The built-in streams are those of the paper, known without files, and the same when loaded from them."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from afaf.errors import ConfigError, DataError
from afaf.streams import benchmarks
from afaf.streams.benchmarks import BENCHMARKS, Normalise, open_stream, outline_of, stream_names
from afaf.streams.sources import SOURCES
from afaf.streams.tasks import Split, Stream
from afaf.training.task_data import TaskData
from streams import makers

SIM_CIFAR100 = [
    ("apple", "girl"),
    ("mouse", "bicycle"),
    ("bee", "lion"),
    ("bottle", "couch"),
    ("orange", "boy"),
    ("rabbit", "motorcycle"),
    ("butterfly", "tiger"),
    ("can", "chair"),
]


def test_outlines_are_those_of_the_paper() -> None:
    split, similar, hundred, mix = (outline_of(name) for name in ("split-cifar10", "sim-cifar10", "sim-cifar100", "mix"))
    assert split.class_names[0] == ("airplane", "automobile")
    assert split.class_names[4] == ("ship", "truck")
    assert similar.class_names == (
        ("automobile", "cat"),
        ("horse", "truck"),
        ("dog", "deer"),
        ("airplane", "bird"),
        ("frog", "ship"),
    )
    assert list(hundred.class_names) == SIM_CIFAR100
    assert [names[0] for names in mix.class_names] == ["airplane", "0", "A", "T-shirt/top", "dog", "5", "F", "Sandal"]
    assert split.train_counts == similar.train_counts == (10000,) * 5
    assert hundred.train_counts == (1000,) * 8
    assert mix.train_counts == (25000, 30596, 8428, 30000, 25000, 29404, 8425, 30000)
    assert mix.train_counts[2] + mix.train_counts[6] == 16853
    assert {outline.input_shape for outline in (split, similar, hundred, mix)} == {(3, 32, 32)}
    assert [outline.n_classes for outline in (split, similar, hundred, mix)] == [10, 10, 16, 40]


def test_published_numbers_add_up() -> None:
    totals = {name: (sum(s.counts["train"]), sum(s.counts["test"])) for name, s in SOURCES.items()}
    assert totals == {
        "cifar10": (50000, 10000),
        "cifar100": (50000, 10000),
        "mnist": (60000, 10000),
        "fashion-mnist": (60000, 10000),
        "notmnist": (16853, 1871),
        "digits": (1438, 359),
    }
    assert SOURCES["notmnist"].counts["test"] == (188,) + (187,) * 9


def test_digits_need_no_files_and_keep_every_value() -> None:
    stream = open_stream("split-digits")
    assert stream.outline == outline_of("split-digits")
    assert [task.class_names for task in stream] == [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7"), ("8", "9")]
    images = np.concatenate([split.images for task in stream for split in (task.train, task.test)])
    assert images.shape == (1797, 8, 8, 1)
    assert set(np.unique(images)) == set(range(0, 241, 15))
    train, prepared = np.concatenate([task.train.images for task in stream]) / 255, stream[0].preparation
    assert (train.mean(), train.std()) == pytest.approx((prepared.mean[0], prepared.std[0]), abs=1e-4)


def test_digits_parts_are_fixed_and_disjoint() -> None:
    first, second = open_stream("split-digits"), open_stream("split-digits")
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.train.images, other.train.images)
        assert np.array_equal(one.test.images, other.test.images)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small copies of the four datasets of Mix, in their publishers' formats."""
    makers.cifar10(tmp_path, per_file=20)
    makers.idx(tmp_path / "mnist", n=40)
    makers.idx(tmp_path / "fashion-mnist", n=60, zipped=False)
    makers.tar_gz(tmp_path / "notMNIST_small.tar.gz", makers.letters(200))
    return tmp_path


def test_tasks_hold_their_classes_in_order_and_nothing_else(folder: Path) -> None:
    made = np.concatenate([np.fromfile(folder / f"cifar-10-batches-bin/data_batch_{i}.bin", np.uint8) for i in range(1, 6)])
    records = made.reshape(-1, 3073)
    stream = BENCHMARKS["sim-cifar10"].load(folder, verify=False)
    for task, labels in zip(stream, ((1, 3), (7, 9), (5, 4), (0, 2), (6, 8)), strict=True):
        mine = records[np.isin(records[:, 0], labels)]
        assert np.array_equal(task.train.images, mine[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        assert task.train.labels.tolist() == [task.classes[labels.index(label)] for label in mine[:, 0]]
        assert len(task.test) == 4


def test_mix_shows_every_dataset_as_three_channels_of_32(folder: Path) -> None:
    stream = BENCHMARKS["mix"].load(folder, verify=False)
    assert {task.input_shape for task in stream} == {(3, 32, 32)}
    assert [task.train.images.shape[3] for task in stream] == [3, 1, 1, 1] * 2
    assert [task.preparation.augment for task in stream] == ["crop-flip", "none", "none", "none"] * 2
    assert [task.preparation.mean for task in stream][:4] == [(0.4914, 0.4822, 0.4465), (0.1,), (0.4254,), (0.2190,)]
    assert [task.preparation.std for task in stream][:4] == [(0.2023, 0.1994, 0.2010), (0.2752,), (0.4501,), (0.3318,)]
    assert [task.classes for task in stream] == [tuple(range(5 * i, 5 * i + 5)) for i in range(8)]
    assert all(set(task.train.labels) == set(task.classes) for task in stream)


def test_mix_can_be_had_with_every_grey_image_resized(folder: Path) -> None:
    usual, resized = (BENCHMARKS["mix"].load(folder, verify=False, fit=fit) for fit in (None, "resize"))
    changed = [not np.array_equal(one.train.images, other.train.images) for one, other in zip(usual, resized, strict=True)]
    assert changed == [False, True, False, True] * 2
    assert resized.outline == usual.outline


def test_mix_can_be_had_with_all_images_normalised_in_the_same_way(folder: Path) -> None:
    """Then an image tells nothing of its task by how it was prepared, and a grey pixel is the same grey in every dataset."""
    usual, same = (BENCHMARKS["mix"].load(folder, verify=False, normalise=way) for way in get_args(Normalise))
    assert {(task.preparation.mean, task.preparation.std) for task in same} == {(usual[0].preparation.mean, usual[0].preparation.std)}
    for task in same:
        split = Split(np.full_like(task.test.images[:1], 128), task.test.labels[:1])
        x, _ = TaskData([(split, task.preparation)]).batch(torch.tensor([0]))
        assert x.shape == (1, 3, 32, 32)
        mean, std = (torch.tensor(numbers) for numbers in (usual[0].preparation.mean, usual[0].preparation.std))
        assert torch.allclose(x[0, :, 0, 0], (128 / 255 - mean) / std)


def test_other_images_than_the_published_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"cifar-10-batches-bin: the train images of .*airplane.* are not those published as CIFAR-10"):
        open_stream("split-cifar10", data=folder)


def test_a_partial_copy_serves_the_streams_it_suffices_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = SOURCES["cifar100"].class_names
    present = [names.index(name) for pair in SIM_CIFAR100 for name in pair]
    makers.cifar100(tmp_path, present)
    benchmark = BENCHMARKS["sim-cifar100"]
    assert benchmark.load(tmp_path, verify=False).outline == benchmark.outline()
    (tmp_path / "cifar-100-binary/test.bin").unlink()
    (tmp_path / "cifar-100-binary/train.bin").unlink()
    (tmp_path / "cifar-100-binary").rmdir()
    makers.cifar100(tmp_path, present[:-1])
    with pytest.raises(DataError, match=r"partial copy: its train part has no images of chair.*afaf data get cifar100"):
        benchmark.load(tmp_path, verify=False)


def test_data_folder_is_named_or_in_the_environment_or_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from afaf.streams.sources import data_folder

    assert data_folder(folder) == folder
    assert "cache" in str(data_folder()).lower()
    monkeypatch.setenv("AFAF_DATA", str(folder))
    assert data_folder() == folder
    assert data_folder("elsewhere") == Path("elsewhere")


# --- names


def test_unknown_names_and_options() -> None:
    with pytest.raises(ConfigError, match="did you mean 'split-cifar10'"):
        open_stream("split-cifar")
    with pytest.raises(ConfigError, match="did you mean 'split-cifar10'"):
        outline_of("split-cifar")
    with pytest.raises(ConfigError, match=r"fixed and takes no options.*size"):
        open_stream("split-digits", size=16)
    with pytest.raises(ConfigError, match=r"fixed and takes no options.*fit"):
        outline_of("split-cifar10", fit="resize")
    with pytest.raises(ConfigError, match=r"takes no options but fit .*but was given: size"):
        open_stream("mix", size=16)
    with pytest.raises(ConfigError, match=r"unknown value of fit 'rezise': did you mean 'resize'"):
        open_stream("mix", fit="rezise")
    assert outline_of("mix", fit="resize") == outline_of("mix")
    with pytest.raises(ConfigError, match=r"unknown value of normalise"):
        open_stream("mix", normalise="each")
    for option in ({"fit": "resize"}, {"normalise": "same"}):
        with pytest.raises(ConfigError, match=next(iter(option))):
            open_stream("folder:.", **option)
    with pytest.raises(ConfigError, match="normalise"):
        outline_of("split-cifar10", normalise="same")
    with pytest.raises(ConfigError, match="'floder:x'"):
        open_stream("floder:x")
    with pytest.raises(ConfigError, match="'folder:'"):
        open_stream("folder:")


def made_elsewhere(data: Path | None, *, n: int = 4) -> Stream:
    return Stream.from_arrays(np.zeros((8 * n, 4, 4), np.uint8), np.arange(8 * n) % n, name=f"elsewhere in {data}")


def not_a_stream(data: Path | None) -> int:
    return 3


def test_streams_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint(name, f"{__name__}:{name}", "afaf.streams") for name in ("made_elsewhere", "not_a_stream")]
    monkeypatch.setattr(benchmarks, "entry_points", lambda group: points)
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[self.name])
    assert "made_elsewhere" in stream_names()
    stream = open_stream("made_elsewhere", data="here", n=6)
    assert (stream.name, stream.outline.n_classes) == ("elsewhere in here", 6)
    assert outline_of("made_elsewhere").n_classes == 4
    with pytest.raises(DataError, match="returned int, not a Stream"):
        open_stream("not_a_stream")
    with pytest.raises(ConfigError, match="did you mean 'made_elsewhere'"):
        open_stream("made_elsewher")
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()["no such function"])
    with pytest.raises(ConfigError, match="cannot be loaded from"):
        open_stream("not_a_stream")


def test_split_cifar100_has_the_order_of_the_field_and_can_be_cut_otherwise() -> None:
    ten, five, two = (outline_of("split-cifar100", **given) for given in ({}, {"classes_per_task": 5}, {"classes_per_task": 2}))
    assert [len(outline) for outline in (ten, five, two)] == [10, 20, 50]
    assert ten.train_counts == (5000,) * 10
    names = [[name for task in outline.class_names for name in task] for outline in (ten, five, two)]
    assert names[0] == names[1] == names[2]
    assert sorted(names[0]) == sorted(SOURCES["cifar100"].class_names)
    first = [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]  # of numpy's permutation of seed 1993, as PyCIL prints it
    assert list(ten.class_names[0]) == [SOURCES["cifar100"].class_names[label] for label in first]


@pytest.mark.parametrize("classes_per_task", [0, 3, 101, -5])
def test_tasks_of_split_cifar100_are_of_one_size(classes_per_task: int) -> None:
    with pytest.raises(ConfigError, match="classes_per_task"):
        outline_of("split-cifar100", classes_per_task=classes_per_task)


def test_only_a_stream_that_can_be_cut_otherwise_takes_classes_per_task() -> None:
    assert outline_of("mix", classes_per_task=2) == outline_of("mix")  # as the config.json of an older run says
    with pytest.raises(ConfigError, match="classes_per_task"):
        outline_of("split-cifar10", classes_per_task=5)
