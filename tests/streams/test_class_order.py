"""Any order of classes on built-in streams: other classes in the same places, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from afaf.errors import AfafError, ConfigError
from afaf.streams.benchmarks import BENCHMARKS, open_stream, outline_of
from afaf.streams.class_order import in_own_labels
from afaf.streams.sources.class_folders import SkippedImages
from afaf.streams.tasks import Stream
from streams import makers

SIX_NINE = "6,9,0,1,2,3,4,5,7,8"
OF_ONE_DATASET = [name for name in BENCHMARKS if name != "mix"]


def images_of(stream: Stream, name: str) -> list[NDArray[Any]]:
    """The training and test images of the class of this name, wherever it is."""
    c = stream.class_order.index(name)
    task = next(task for task in stream if c in task.classes)
    return [np.asarray(split.of_classes(c).images) for split in (task.train, task.test)]


def all_names(name: str) -> list[str]:
    return [one for task in outline_of(name).class_names for one in task]


def test_the_first_task_has_the_images_of_the_classes_that_come_first() -> None:
    stream, usual = open_stream("split-digits", order=SIX_NINE), open_stream("split-digits")
    assert [task.class_names for task in stream] == [("6", "9"), ("0", "1"), ("2", "3"), ("4", "5"), ("7", "8")]
    assert [task.classes for task in stream] == [task.classes for task in usual]
    assert set(stream[0].train.labels.tolist()) == {0, 1}
    assert len(stream[0].train) == sum(len(images_of(usual, name)[0]) for name in "69")
    for name in usual.class_order:
        for here, there in zip(images_of(stream, name), images_of(usual, name), strict=True):
            assert np.array_equal(here, there)


@pytest.mark.parametrize("name", OF_ONE_DATASET)
def test_an_order_keeps_the_number_of_tasks_and_of_classes(name: str) -> None:
    usual, reversed_ = outline_of(name), outline_of(name, class_order=all_names(name)[::-1])
    assert reversed_.name == usual.name
    assert reversed_.classes_per_task == usual.classes_per_task
    assert [one for task in reversed_.class_names for one in task] == all_names(name)[::-1]


@pytest.mark.parametrize("name", ["split-digits", "digit-pairs"])
def test_the_usual_order_gives_the_same_bits_as_none(name: str) -> None:
    usual = open_stream(name)
    for order in (",".join(usual.class_order), ""):
        for one, other in zip(usual, open_stream(name, order=order), strict=True):
            assert (one.classes, one.class_names, one.preparation) == (other.classes, other.class_names, other.preparation)
            for a, b in ((one.train, other.train), (one.test, other.test)):
                assert np.array_equal(a.images, b.images)
                assert np.array_equal(a.labels, b.labels)


def test_what_is_loaded_is_what_the_outline_says(tmp_path: Path) -> None:
    makers.cifar10(tmp_path, per_file=20)
    benchmark = BENCHMARKS["sim-cifar10"]
    usual, other = benchmark.load(tmp_path, verify=False), benchmark.reordered("seed:3").load(tmp_path, verify=False)
    assert other.outline.class_names == benchmark.reordered("seed:3").outline().class_names != usual.outline.class_names
    for name in usual.class_order:
        assert all(np.array_equal(a, b) for a, b in zip(images_of(usual, name), images_of(other, name), strict=True))


def test_a_class_is_known_by_its_name_and_by_its_number_in_the_dataset(tmp_path: Path) -> None:
    names, numbers = "truck,cat,ship,dog,bird,frog,deer,horse,airplane,automobile", "9,3,8,5,2,6,4,7,0,1"
    (tmp_path / "order.txt").write_text("truck, cat\nship, dog # as written\n\nbird, 6\ndeer, horse\nairplane, automobile\n")
    listed = [int(number) for number in numbers.split(",")]
    given: list[dict[str, Any]] = [
        {"order": numbers},
        {"order": str(tmp_path / "order.txt")},
        {"class_order": listed},
        {"class_order": np.array(listed).reshape(5, 2)},
    ]
    for stream in ("split-cifar10", "sim-cifar10"):  # whose own places of these classes differ
        by_name = outline_of(stream, order=names)
        assert by_name.class_names[:2] == (("truck", "cat"), ("ship", "dog"))
        assert all(outline_of(stream, **options) == by_name for options in given)


def test_tasks_are_cut_before_classes_are_put_into_them() -> None:
    backwards = all_names("split-cifar100")[::-1]
    outline = outline_of("split-cifar100", order=",".join(backwards), classes_per_task=5)
    assert outline.class_names == tuple(tuple(backwards[i : i + 5]) for i in range(0, 100, 5))


# --- a seed


def test_a_seed_is_the_permutation_that_others_publish() -> None:
    assert outline_of("split-cifar100", order="seed:1993") == outline_of("split-cifar100")


@pytest.mark.parametrize("name", OF_ONE_DATASET)
def test_each_seed_is_an_order_of_the_same_classes(name: str) -> None:
    orders = {outline_of(name, order=f"seed:{seed}").class_names for seed in range(20)}
    assert {tuple(sorted(one for task in names for one in task)) for names in orders} == {tuple(sorted(all_names(name)))}
    assert len(orders) > 10
    assert outline_of(name, order="seed:7") == outline_of(name, order="seed:7")


def test_a_seed_does_not_depend_on_the_order_of_the_data() -> None:
    for labels in (["b", "a", "d", "c"], [3, 1, 2, 10]):
        array = np.array(labels)
        order = in_own_labels("seed:5", array)
        assert order == in_own_labels("seed:5", np.repeat(array[::-1], 3))
        assert sorted(order or []) == sorted(labels)


def test_own_data_take_a_seed_too(tmp_path: Path) -> None:
    y = np.repeat(np.arange(6), 4)
    np.savez(tmp_path / "own.npz", x=np.zeros((24, 8, 8), np.uint8) + y[:, None, None].astype(np.uint8), y=y)
    stream = open_stream(f"npz:{tmp_path / 'own.npz'}", order="seed:1", size=0)
    assert [len(task.classes) for task in stream] == [2, 2, 2]
    assert sorted(stream.class_order) == list("012345") != list(stream.class_order)
    for name in stream.class_order:
        assert all((images == int(name)).all() for images in images_of(stream, name))


def test_with_a_seed_no_class_of_own_images_is_lost_silently(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(3):
            (tmp_path / name / f"{i}.png").write_bytes(makers.png(makers.pixels(8, 8, seed=i)) if name == "a" else b"no image")
    with pytest.warns(SkippedImages), pytest.raises(AfafError, match="b"):
        open_stream(f"folder:{tmp_path}", order="seed:1", unreadable="skip")


@pytest.mark.parametrize("seed", ["", "x", "-1", "1.5", "４", str(2**32), "9" * 5000])
def test_what_is_no_seed_is_refused(seed: str) -> None:
    with pytest.raises(ConfigError, match="seed:"):
        outline_of("split-digits", order=f"seed:{seed}")


# --- orders that do not fit


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("6,9,0,1,2,3,4,5,7,zebra", "zebra"),
        ("6,9,0,1,2,3,4,5,7,10", "10"),
        ("6,9,0,1,2,3,4,5,7", "8"),
        ("6,9,0,1,2,3,4,5,7,8,6", "6"),
        ("6,9,0,1,2,3,4,5,7,7", "7"),
        (",", "0"),
    ],
)
def test_unknown_missing_and_repeated_classes_are_named(order: str, words: str) -> None:
    for refuse in (open_stream, outline_of):
        with pytest.raises(ConfigError, match=rf"stream\.order.*{words}"):
            refuse("split-digits", order=order)


def test_a_class_of_the_dataset_that_is_not_in_the_stream_is_unknown() -> None:
    with pytest.raises(ConfigError, match="bear"):
        outline_of("sim-cifar100", class_order=["bear", *all_names("sim-cifar100")[1:]])


@pytest.mark.parametrize("lines", ["6,9,0\n1\n2,3\n4,5\n7,8", "6,9,0,1,2,3,4,5,7,8\n", "6\n9\n0\n1\n2\n3\n4\n5\n7\n8\n"])
def test_an_order_does_not_change_the_sizes_of_tasks(lines: str, tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_text(lines)
    with pytest.raises(ConfigError, match=r"order\.txt"):
        outline_of("split-digits", order=str(tmp_path / "order.txt"))


@pytest.mark.parametrize("order", [[["6", "9"], "0"], [[["6"]]], np.zeros((2, 2, 2)), [["6", "9"], 0, 1, 2, 3, 4, 5, 7, 8], []])
def test_lists_that_are_no_order_are_refused(order: Any) -> None:
    with pytest.raises(ConfigError, match="order"):
        outline_of("split-digits", class_order=order)


def test_a_word_without_commas_is_a_file_that_must_exist() -> None:
    with pytest.raises(AfafError, match="truck"):
        outline_of("split-cifar10", order="truck")


@pytest.mark.parametrize("options", [{"order": SIX_NINE}, {"order": "seed:1"}, {"class_order": ["0"]}])
def test_a_stream_of_several_datasets_takes_no_order(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="mix"):
        outline_of("mix", **options)


def test_one_order_at_a_time() -> None:
    with pytest.raises(ConfigError, match="class_order"):
        outline_of("split-digits", order=SIX_NINE, class_order=list("0123456789"))
