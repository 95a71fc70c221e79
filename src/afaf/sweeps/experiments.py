"""Experiments: a grid of runs in a TOML file, such as those behind a table or figure.

title = "..."           feeds = "Table 3"        keep = { NAME = "package.module:function" }   (optional)
[[grid]]                streams x methods x variants x seeds 0..N-1
streams = [...]         methods = [...]          seeds = 5
[grid.variants]         each a table of the settings that differ from the preset; without any, the preset as it is
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from afaf.bounds import Count
from afaf.checked import NotEmpty, build
from afaf.errors import AfafError, CapacityError, ConfigError, unknown
from afaf.runs.config import Table, check_names, read_toml
from afaf.runs.job import Job
from afaf.runs.presets import with_presets
from afaf.runs.setup import set_up
from afaf.streams.tasks import Outline
from afaf.sweeps.store import Key, Line, canonical, key_of


@dataclass(frozen=True)
class ExperimentFile:
    """The keys of an experiment's file."""

    title: str
    feeds: str
    grid: Annotated[list[dict[str, Any]], NotEmpty]
    keep: dict[str, str] = field(default_factory=dict)  # functions of (model, stream) whose values are stored, by name


@dataclass(frozen=True)
class Grid:
    """The keys of one [[grid]]."""

    streams: Annotated[list[str], NotEmpty]
    methods: Annotated[list[str], NotEmpty]
    seeds: Count
    variants: Annotated[dict[str, dict[str, Any]], NotEmpty] = field(default_factory=lambda: {"": {}})


@dataclass(frozen=True)
class Planned:
    """One run of an experiment."""

    experiment: str
    variant: str
    stream: str
    method: str
    given: Mapping[str, Any]  # settings as the experiment gives them
    settings: Mapping[str, Any]  # those that differ from the preset
    seed: int
    keep: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def key(self) -> Key:
        return key_of(self.stream, self.method, self.settings, self.seed)

    def done(self, lines: Mapping[Key, Line]) -> bool:
        """Whether the results hold this run and everything that the experiment keeps of it."""
        line = lines.get(self.key)
        return line is not None and ("failed" in line or all(name in line.get("kept", {}) for name in self.keep))

    def with_settings(self, more: Mapping[str, Any]) -> Planned:
        given = {**self.given, **more}
        return replace(self, given=given, settings=differing(self.stream, self.method, given))

    def __str__(self) -> str:
        changed = " ".join(f"{name}={json.dumps(value)}" for name, value in self.settings.items())
        return f"{self.stream} {self.method}{' ' + changed if changed else ''}, seed {self.seed}"


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    feeds: str
    runs: tuple[Planned, ...]

    def missing(self, lines: Mapping[Key, Line]) -> list[Planned]:
        return [run for run in self.runs if not run.done(lines)]

    def with_settings(self, more: Mapping[str, Any]) -> Experiment:
        """The same experiment with further settings in every run."""
        return replace(self, runs=tuple(run.with_settings(more) for run in self.runs))


def seeds_by(name: Callable[[Planned], str], runs: Iterable[Planned]) -> dict[str, list[int]]:
    """The seeds of runs that have the same name, in order."""
    found: dict[str, list[int]] = {}
    for run in runs:
        found.setdefault(name(run), []).append(run.seed)
    return found


def read_experiments(folder: Path, names: Iterable[str] = ("all",), seeds: int | None = None) -> list[Experiment]:
    """The experiments of these names, or `all` of them; `seeds` overrides how many seeds every run gets."""
    files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if not files:
        raise ConfigError(f"there are no experiments in {folder}: name the folder with --experiments, or in [tool.afaf] of pyproject.toml")
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in files and name != "all":
            raise ConfigError(unknown("experiment", name, [*files, "all"]))
    if "all" in chosen:
        first = ["main"] if "main" in files else []
        chosen = first + [name for name in files if name not in first]
    return [read_experiment(files[name], seeds) for name in chosen]


def read_experiment(path: Path, seeds: int | None = None) -> Experiment:
    """Read and check an experiment's file; the data is not checked."""
    table = read_toml(path)
    with _wrong_in(str(path)):
        file: ExperimentFile = build(ExperimentFile, table)
    runs: dict[Key, Planned] = {}
    for number, grid in enumerate(file.grid, 1):
        with _wrong_in(f"{path}, grid {number}"):
            for run in _runs_of(path.stem, build(Grid, grid), file.keep, seeds):
                runs.setdefault(run.key, run)
    return Experiment(path.stem, file.title, file.feeds, tuple(runs.values()))


def _runs_of(name: str, grid: Grid, keep: Mapping[str, str], seeds: int | None) -> Iterable[Planned]:
    """All runs of a grid; those that differ only in the seed are adjacent."""
    for stream in grid.streams:
        for method in grid.methods:
            for variant, settings in grid.variants.items():
                differs = differing(stream, method, settings)
                for seed in range(grid.seeds if seeds is None else seeds):
                    yield Planned(name, variant, stream, method, settings, differs, seed, keep)


def differing(stream: str, method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from the preset, in their stored form; raises ConfigError for settings that no run could have.

    A sub-network that does not fit is an outcome of the run, not an error.
    """
    job = Job(stream, method, settings=settings)
    outline = job.outline()
    try:
        set_up(outline, method, *job.tables)
    except CapacityError:
        pass
    except AfafError as error:
        raise ConfigError(f"{stream}, {method}: {error}") from None
    kept = canonical(settings)
    whole = _resolved(outline, Job(stream, method, settings=kept))
    for name in list(kept):  # one at a time: the preset may follow another setting, as it follows the network
        others = {other: value for other, value in kept.items() if other != name}
        with contextlib.suppress(ConfigError):  # the others may need this one
            if _resolved(outline, Job(stream, method, settings=others)) == whole:
                kept = others
    return canonical({name: _as_resolved(name, value, whole) for name, value in kept.items()})


def _as_resolved(name: str, value: Any, resolved: Table) -> Any:
    """The value of a setting in the configuration; a table is returned as given, since it is merged with the preset."""
    current: Any = resolved
    for part in name.split("."):
        current = current[part]
    return value if isinstance(current, Mapping) else current


def _resolved(outline: Outline, job: Job) -> Table:
    """The configuration of a job; one setting of several may lack the others that it needs, so they are not checked together here."""
    kind = job.method_class
    return check_names(kind.Options, *with_presets(outline, kind, job.tables)).to_dict()


@contextlib.contextmanager
def _wrong_in(where: str) -> Iterator[None]:
    """Prefix errors of the block with a place in a file."""
    try:
        yield
    except AfafError as error:
        raise ConfigError(f"{where}: {error}") from None
