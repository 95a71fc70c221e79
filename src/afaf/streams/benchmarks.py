"""The built-in streams, described as data: which classes of which dataset each task brings.

A new stream of published datasets is one more entry of `BENCHMARKS`; streams of other packages come through the entry point
group `afaf.streams`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import numpy as np

from afaf.errors import ConfigError, DataError, unknown
from afaf.streams.sources import Part, Source, data_folder, find_source
from afaf.streams.sources.load import load_groups
from afaf.streams.tasks import Outline, Split, Stream, Task

ENTRY_POINTS = "afaf.streams"


@dataclass(frozen=True)
class Recipe:
    """One task: the dataset it is taken from, and which of its labels, in order."""

    source: str
    labels: tuple[int, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(find_source(self.source).class_names[label] for label in self.labels)

    def count(self, part: Part) -> int:
        return sum(find_source(self.source).counts[part][label] for label in self.labels)


@dataclass(frozen=True)
class Benchmark:
    """A built-in stream."""

    name: str
    description: str
    tasks: tuple[Recipe, ...]
    illustration: bool = False  # two tasks that show one thing, rather than a benchmark to compare methods on
    regroups: bool = False  # `classes_per_task` may cut the same classes, in the same order, into other tasks

    @property
    def sources(self) -> tuple[Source, ...]:
        """The datasets it needs, in order of appearance."""
        return tuple(find_source(name) for name in dict.fromkeys(recipe.source for recipe in self.tasks))

    def regrouped(self, classes_per_task: int) -> Benchmark:
        """The same classes in the same order, in tasks of another size."""
        source, labels = self.tasks[0].source, [label for recipe in self.tasks for label in recipe.labels]
        if not 1 <= classes_per_task <= len(labels) or len(labels) % classes_per_task:
            raise ConfigError(
                f"stream.classes_per_task = {classes_per_task} does not divide the {len(labels)} classes of '{self.name}': "
                "choose a number that does"
            )
        cut = range(0, len(labels), classes_per_task)
        return replace(self, tasks=tuple(Recipe(source, tuple(labels[i : i + classes_per_task])) for i in cut))

    def outline(self) -> Outline:
        """What is known without the files."""
        first = find_source(self.tasks[0].source)
        height, width, channels = first.shape
        return Outline(
            self.name,
            (first.preparation.channels or channels, height, width),
            tuple(recipe.class_names for recipe in self.tasks),
            tuple(recipe.count("train") for recipe in self.tasks),
        )

    def load(self, data: Path | str | None = None, *, verify: bool = True, fit: str | None = None) -> Stream:
        """The stream, read from the data folder; with `verify` (the default) other images than the published are refused.

        `fit` chooses how images of 28x28 come to 32x32, where a dataset leaves the choice.
        """
        folder = data_folder(data)
        splits: dict[tuple[int, Part], Split] = {}
        for used in self.sources:
            numbers = [i for i, recipe in enumerate(self.tasks) if recipe.source == used.name]
            groups = [self.tasks[i].labels for i in numbers]
            for part, loaded in load_groups(used, folder, groups, verify=verify, fit=fit).items():
                splits.update(((i, part), split) for i, split in zip(numbers, loaded, strict=True))
        tasks, first = [], 0
        for i, recipe in enumerate(self.tasks):
            train, test = splits[i, "train"], splits[i, "test"]
            for split in (train, test):
                split.labels[...] += first  # from numbers within the task to class ids
            classes = tuple(range(first, first + len(recipe.labels)))
            tasks.append(Task(i + 1, classes, recipe.class_names, train, test, find_source(recipe.source).preparation))
            first += len(recipe.labels)
        return Stream(self.name, tasks)


def _tasks(name: str, *groups: tuple[int, ...]) -> tuple[Recipe, ...]:
    return tuple(Recipe(name, group) for group in groups)


def _named(name: str, *groups: str) -> tuple[Recipe, ...]:
    names = find_source(name).class_names
    return tuple(Recipe(name, tuple(names.index(n) for n in group.split(","))) for group in groups)


PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
MIX = ("cifar10", "mnist", "notmnist", "fashion-mnist")
FIELD_ORDER = tuple(np.random.RandomState(1993).permutation(100).tolist())  # the class order that PyCIL and others use for CIFAR-100

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("split-digits", "scikit-learn's 8x8 digits, five tasks of two; needs no files", _tasks("digits", *PAIRS)),
        Benchmark("split-cifar10", "CIFAR-10 in label order, five tasks of two", _tasks("cifar10", *PAIRS)),
        Benchmark(
            "sim-cifar10",
            "CIFAR-10, five tasks of two in which similar classes arrive in different tasks",
            _tasks("cifar10", (1, 3), (7, 9), (5, 4), (0, 2), (6, 8)),
        ),
        Benchmark(
            "sim-cifar100",
            "sixteen classes of CIFAR-100, eight tasks of two; tasks 5-8 bring classes similar to those of 1-4",
            _named(
                "cifar100",
                "apple,girl",
                "mouse,bicycle",
                "bee,lion",
                "bottle,couch",
                "orange,boy",
                "rabbit,motorcycle",
                "butterfly,tiger",
                "can,chair",
            ),
        ),
        Benchmark(
            "split-cifar100",
            "the whole of CIFAR-100 in the order of PyCIL, ten tasks of ten; stream.classes_per_task cuts it otherwise",
            _tasks("cifar100", *(FIELD_ORDER[i : i + 10] for i in range(0, 100, 10))),
            regroups=True,
        ),
        Benchmark(
            "mix",
            "CIFAR-10, MNIST, notMNIST and Fashion-MNIST by turns, eight tasks of five",
            tuple(Recipe(name, labels) for labels in ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)) for name in MIX),
        ),
        Benchmark("digit-pairs", "two tasks of two digits, on a network small enough to draw", _tasks("digits", *PAIRS[:2]), True),
        Benchmark(
            "similar-pairs", "{cat, car} then {dog, truck}: the second task resembles the first", _tasks("cifar10", (3, 1), (5, 9)), True
        ),
        Benchmark("dissimilar-pairs", "{car, truck} then {cat, dog}: it does not", _tasks("cifar10", (1, 9), (3, 5)), True),
    )
}


def open_stream(name: str, *, data: Path | str | None = None, **options: Any) -> Stream:
    """The stream of this name: a built-in one, `folder:PATH`, `npz:PATH`, or one another package registered.

    `data` is the folder of the published datasets. The options are those of own data (see own.py). Built-in streams take two of them:
    Mix `fit`, "pad" (the default) or "resize" (how MNIST and Fashion-MNIST come from 28x28 pixels to 32x32), split-cifar100
    `classes_per_task`.
    """
    if name in BENCHMARKS:
        benchmark, options = _with_options(BENCHMARKS[name], options)
        return benchmark.load(data, **options)
    kind, _, path = name.partition(":")
    if path and kind in _own():
        if "fit" in options:
            raise ConfigError("stream.fit is a choice that some published datasets leave; your own images are resized: leave it out")
        return _own()[kind](Path(path).expanduser(), **options)
    check_name(name)
    return _from_plugin(_plugins()[name], Path(data) if data is not None else None, options)


def check_name(name: str) -> None:
    """A stream that does not exist, or a path that leads nowhere, is refused before anything is read."""
    kind, _, path = name.partition(":")
    if path and kind in _own():
        place = Path(path).expanduser()
        if not place.exists():
            raise DataError(f"{place}: no such {'folder' if kind == 'folder' else 'file'}: name the one that holds your images")
    elif name not in BENCHMARKS and name not in _plugins():
        raise ConfigError(unknown("stream", name, [*BENCHMARKS, *_plugins(), "folder:PATH", "npz:PATH"]))


def outline_of(name: str, *, data: Path | str | None = None, **options: Any) -> Outline:
    """What is known of a stream: without any file for the built-in ones, by loading it for the others."""
    if name in BENCHMARKS:
        return _with_options(BENCHMARKS[name], options)[0].outline()
    return open_stream(name, data=data, **options).outline


def stream_names() -> list[str]:
    """Every name that can be opened without a path."""
    return [*BENCHMARKS, *(name for name in _plugins() if name not in BENCHMARKS)]


def _own() -> dict[str, Callable[..., Stream]]:
    from afaf.streams import own

    return {"folder": own.stream_from_folder, "npz": own.stream_from_npz}


def _with_options(benchmark: Benchmark, options: dict[str, Any]) -> tuple[Benchmark, dict[str, Any]]:
    """The benchmark cut as asked, and the options that are left for loading it; an option it does not take is refused."""
    options = dict(options)
    if not benchmark.regroups and options.get("classes_per_task") == 2:
        del options["classes_per_task"]  # config.json of runs before 0.2 says so of every built-in stream
    fits = {way for source in benchmark.sources if len(source.fits) > 1 for way in source.fits}
    takes = [*(["fit"] if fits else []), *(["classes_per_task"] if benchmark.regroups else [])]
    wrong = sorted(set(options) - set(takes))
    if wrong:
        allowed = f"no options but {' and '.join(takes)}" if takes else "no options"
        raise ConfigError(f"stream '{benchmark.name}' is fixed and takes {allowed}, but was given: {', '.join(wrong)}")
    if "fit" in options and options["fit"] not in fits:
        raise ConfigError(unknown("value of fit", str(options["fit"]), fits))
    if "classes_per_task" in options:
        benchmark = benchmark.regrouped(options.pop("classes_per_task"))
    return benchmark, options


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _from_plugin(plugin: EntryPoint, data: Path | None, options: dict[str, Any]) -> Stream:
    try:
        make = plugin.load()
    except Exception as error:  # another package's code
        raise ConfigError(f"stream '{plugin.name}' cannot be loaded from {plugin.value} ({error}): mend or remove that package") from error
    stream = make(data, **options)
    if not isinstance(stream, Stream):
        raise DataError(f"stream '{plugin.name}' ({plugin.value}) returned {type(stream).__name__}, not a Stream: mend it there")
    return stream
