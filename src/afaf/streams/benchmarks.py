"""The built-in streams, from benchmarks.toml, and opening any stream by its name.

Other packages register streams with the entry point group `afaf.streams`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from afaf.errors import ConfigError, DataError, unknown
from afaf.streams.class_order import one_order, rearranged
from afaf.streams.sources import PARTS, Part, Source, data_folder, find_source
from afaf.streams.sources.verify import Labels, Pair, count_classes, shortened, verified
from afaf.streams.tasks import Outline, Split, Stream, Task

ENTRY_POINTS = "afaf.streams"
Normalise = Literal["dataset", "same"]


@dataclass(frozen=True)
class Recipe:
    """One task: its dataset, and the labels it takes from it, in order."""

    source: str
    labels: tuple[int, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(find_source(self.source).class_names[label] for label in self.labels)

    def count(self, part: Part) -> int:
        return sum(find_source(self.source).counts[part][label] for label in self.labels)


@dataclass(frozen=True)
class Benchmark:
    """A built-in stream; benchmarks.toml explains the flags."""

    name: str
    description: str
    tasks: tuple[Recipe, ...]
    illustration: bool = False  # two tasks that demonstrate one point, not a benchmark to compare methods on
    regroups: bool = False  # `classes_per_task` may cut the same classes, in the same order, into other tasks

    @property
    def sources(self) -> tuple[Source, ...]:
        """The datasets, in order of appearance."""
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

    def reordered(self, order: Any) -> Benchmark:
        """The same classes in another order, in tasks of the same sizes."""
        if len(self.sources) > 1:
            titles = ", ".join(source.title for source in self.sources)
            raise ConfigError(
                f"stream '{self.name}' takes no class order: its tasks are of several datasets ({titles}), and all images of a task are "
                "prepared as those of one; order a stream of one dataset, such as split-cifar10, or your own images in npz:PATH"
            )
        (source,) = self.sources
        tasks = rearranged(self.name, [recipe.labels for recipe in self.tasks], source.class_names, order)
        return replace(self, tasks=tuple(Recipe(source.name, tuple(labels)) for labels in tasks))

    def outline(self) -> Outline:
        """Return the stream's outline, without reading the files."""
        first = find_source(self.tasks[0].source)
        height, width, channels = first.shape
        return Outline(
            self.name,
            (first.preparation.channels or channels, height, width),
            tuple(recipe.class_names for recipe in self.tasks),
            tuple(recipe.count("train") for recipe in self.tasks),
        )

    def load(
        self, data: Path | str | None = None, *, verify: bool = True, fit: str | None = None, normalise: Normalise = "dataset"
    ) -> Stream:
        """Read the stream from the data folder; `verify` refuses images that are not the published ones.

        `fit` is how a dataset's 28x28 images become 32x32, if it offers a choice. `normalise`: by each dataset's mean and standard
        deviation, or all by those of the first.
        """
        folder = data_folder(data)
        splits: dict[tuple[int, Part], Split] = {}
        for source in self.sources:
            numbers = [i for i, recipe in enumerate(self.tasks) if recipe.source == source.name]
            groups = [self.tasks[i].labels for i in numbers]
            for part, loaded in load_groups(source, folder, groups, verify=verify, fit=fit).items():
                splits.update(((i, part), split) for i, split in zip(numbers, loaded, strict=True))
        tasks, first = [], 0
        for i, recipe in enumerate(self.tasks):
            train, test = splits[i, "train"], splits[i, "test"]
            for split in (train, test):
                split.labels[...] += first  # from numbers within the task to class ids
            classes = tuple(range(first, first + len(recipe.labels)))
            preparation = find_source(recipe.source).preparation
            if normalise == "same":
                preparation = replace(preparation, mean=self.sources[0].preparation.mean, std=self.sources[0].preparation.std)
            tasks.append(Task(i + 1, classes, recipe.class_names, train, test, preparation))
            first += len(recipe.labels)
        return Stream(self.name, tasks)


def _benchmark(name: str, description: str, tasks: list[Any], source: str = "", **flags: bool) -> Benchmark:
    recipes = []
    for task in tasks:
        of, labels = (source, task) if source else (task["source"], task["labels"])
        names = find_source(of).class_names
        recipes.append(Recipe(of, tuple(names.index(label) if isinstance(label, str) else label for label in labels)))
    return Benchmark(name, description, tuple(recipes), **flags)


_TABLES = tomllib.loads((files(__package__) / "benchmarks.toml").read_text(encoding="utf-8"))
BENCHMARKS = {name: _benchmark(name, **table) for name, table in _TABLES.items()}


def open_stream(name: str, *, data: Path | str | None = None, **options: Any) -> Stream:
    """Open a stream by name: a built-in one, `folder:PATH`, `npz:PATH`, or one that another package registered.

    `data` is the folder of the published datasets. The options of own data are in own.py. Built-in streams have fewer: those of one
    dataset have `order` and `class_order`, as own data; split-cifar100 has `classes_per_task`; mix has `fit`, "pad" (the default)
    or "resize" (how MNIST and Fashion-MNIST go from 28x28 to 32x32), and `normalise`, "dataset" (the default) or "same".
    """
    if name in BENCHMARKS:
        benchmark, options = _with_options(BENCHMARKS[name], options)
        return benchmark.load(data, **options)
    kind, _, path = name.partition(":")
    if path and kind in _own():
        for option in {"fit", "normalise"} & options.keys():
            raise ConfigError(f"stream.{option} is an option of Mix; your own images are all prepared in the same way: leave it out")
        return _own()[kind](Path(path).expanduser(), **options)
    check_name(name)
    return _from_plugin(_plugins()[name], Path(data) if data is not None else None, options)


def check_name(name: str) -> None:
    """Refuse the name of an unknown stream, or a path that does not exist."""
    kind, _, path = name.partition(":")
    if path and kind in _own():
        location = Path(path).expanduser()
        if not location.exists():
            raise DataError(f"{location}: no such {'folder' if kind == 'folder' else 'file'}: name the one that holds your images")
    elif name not in BENCHMARKS and name not in _plugins():
        raise ConfigError(unknown("stream", name, [*BENCHMARKS, *_plugins(), "folder:PATH", "npz:PATH"]))


def outline_of(name: str, *, data: Path | str | None = None, **options: Any) -> Outline:
    """Return a stream's outline; built-in streams need no files, others are loaded."""
    if name in BENCHMARKS:
        return _with_options(BENCHMARKS[name], options)[0].outline()
    return open_stream(name, data=data, **options).outline


def stream_names() -> list[str]:
    """Return all names that can be opened without a path."""
    return [*BENCHMARKS, *(name for name in _plugins() if name not in BENCHMARKS)]


def _own() -> dict[str, Callable[..., Stream]]:
    from afaf.streams import own

    return {"folder": own.stream_from_folder, "npz": own.stream_from_npz}


def _with_options(benchmark: Benchmark, options: dict[str, Any]) -> tuple[Benchmark, dict[str, Any]]:
    """Apply `classes_per_task` and `order`, and return the options left for `load`; refuse options that the benchmark does not have."""
    options = dict(options)
    order = one_order(options.pop("order", None), options.pop("class_order", None))
    if not benchmark.regroups and options.get("classes_per_task") == 2:
        del options["classes_per_task"]  # config.json of runs before 0.2 has it for every built-in stream
    fits = {fit for source in benchmark.sources if len(source.fits) > 1 for fit in source.fits}
    several = len(benchmark.sources) > 1
    has = {"fit": bool(fits), "normalise": several, "classes_per_task": benchmark.regroups, "order": not several}
    allowed = [name for name, is_there in has.items() if is_there]
    wrong = sorted(set(options) - set(allowed))
    if wrong:
        words = f"no options but {' and '.join(allowed)}" if allowed else "no options"
        raise ConfigError(f"stream '{benchmark.name}' is fixed and takes {words}, but was given: {', '.join(wrong)}")
    if "fit" in options and options["fit"] not in fits:
        raise ConfigError(unknown("value of fit", str(options["fit"]), fits))
    if "normalise" in options and options["normalise"] not in get_args(Normalise):
        raise ConfigError(unknown("value of normalise", str(options["normalise"]), get_args(Normalise)))
    if "classes_per_task" in options:
        benchmark = benchmark.regrouped(options.pop("classes_per_task"))
    return benchmark if order is None else benchmark.reordered(order), options


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _from_plugin(plugin: EntryPoint, data: Path | None, options: dict[str, Any]) -> Stream:
    try:
        make = plugin.load()
    except Exception as error:  # another package's code
        raise ConfigError(f"stream '{plugin.name}' cannot be loaded from {plugin.value} ({error}): repair or remove the package") from error
    stream = make(data, **options)
    if not isinstance(stream, Stream):
        raise DataError(f"stream '{plugin.name}' ({plugin.value}) returned {type(stream).__name__}, not a Stream: repair that package")
    return stream


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
