"""Experiments: a grid of runs in a TOML file, such as those behind a table or figure.

title = "..."           feeds = "Table 3"        keep = ["ledger"]   (optional: what is kept besides accuracies, see runs/probes.py)
[[grid]]                streams x methods x variants x seeds 0..N-1
streams = [...]         methods = [...]          seeds = 5
[grid.variants]         each a table of the settings that differ from the preset; without any, the preset as it is
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from afaf.errors import AfafError, CapacityError, ConfigError, unknown
from afaf.runs.config import Table, check_names, read_toml
from afaf.runs.job import Job
from afaf.runs.presets import preset_tables
from afaf.runs.probes import check_keep
from afaf.runs.records import is_text
from afaf.runs.setup import set_up
from afaf.streams.tasks import Outline
from afaf.sweeps.store import Key, Line, canonical, key_of


@dataclass(frozen=True)
class Entry:
    """What a key of an experiment's file holds: in words, and as a check."""

    must_be: str
    fits: Callable[[Any], bool]
    needed: bool = True


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(entry, dict) for entry in value)


def _are_variants(value: Any) -> bool:
    return isinstance(value, dict) and _are_tables(list(value.values()))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1  # true is no number


EXPERIMENT = {
    "title": Entry("text", is_text),
    "feeds": Entry('text, such as "Table 3"', is_text),
    "keep": Entry('a list of names, such as ["ledger"]', _are_names, needed=False),
    "grid": Entry("one table or more, each headed [[grid]]", _are_tables),
}
GRID = {
    "streams": Entry("a list of one name or more", lambda value: _are_names(value) and value != []),
    "methods": Entry("a list of one name or more", lambda value: _are_names(value) and value != []),
    "seeds": Entry("a whole number from 1", _is_count),
    "variants": Entry("one table of settings or more, such as plain = {}", _are_variants, needed=False),
}


@dataclass(frozen=True)
class Planned:
    """One run of an experiment."""

    experiment: str
    variant: str
    stream: str
    method: str
    settings: Mapping[str, Any]  # what differs from the preset
    seed: int
    keep: tuple[str, ...] = ()

    @cached_property
    def key(self) -> Key:
        return key_of(self.stream, self.method, self.settings, self.seed)

    def done(self, lines: Mapping[Key, Line]) -> bool:
        """Whether the results hold this run, with all that the experiment keeps of it."""
        line = lines.get(self.key)
        return line is not None and ("failed" in line or all(name in line.get("kept", {}) for name in self.keep))

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
        """The same with further settings in every run: for trying things out."""
        runs = (replace(run, settings=differing(run.stream, run.method, {**run.settings, **more})) for run in self.runs)
        return replace(self, runs=tuple(runs))


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
    """An experiment from its file, with everything in it checked but the data."""
    table = read_toml(path)
    _check_table(table, EXPERIMENT, str(path))
    keep = tuple(table.get("keep", ()))
    with _wrong_in(str(path)):
        check_keep(keep)
    runs: dict[Key, Planned] = {}
    for number, grid in enumerate(table["grid"], 1):
        where = f"{path}, grid {number}"
        _check_table(grid, GRID, where)
        with _wrong_in(where):
            for run in _runs_of(path.stem, grid, keep, seeds):
                runs.setdefault(run.key, run)
    return Experiment(path.stem, table["title"], table["feeds"], tuple(runs.values()))


def _runs_of(name: str, grid: Table, keep: tuple[str, ...], seeds: int | None) -> Iterable[Planned]:
    """Seeds innermost: runs of one shape come together."""
    for stream in grid["streams"]:
        for method in grid["methods"]:
            for variant, settings in grid.get("variants", {"": {}}).items():
                differs = differing(stream, method, settings)
                for seed in range(grid["seeds"] if seeds is None else seeds):
                    yield Planned(name, variant, stream, method, differs, seed, keep)


def differing(stream: str, method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of these settings those that differ from the preset, in the one way they are kept; settings that no run could have are refused.

    A sub-network that does not fit is not refused: that is an outcome.
    """
    job = Job(stream, method, settings=settings)
    outline = job.outline()
    try:
        set_up(outline, method, *job.tables)
    except CapacityError:
        pass
    except AfafError as error:
        raise ConfigError(f"{stream}, {method}: {error}") from None
    preset = _resolved(outline, Job(stream, method))
    kept: dict[str, Any] = {}
    for name, value in canonical(settings).items():
        resolved = _resolved(outline, Job(stream, method, settings={name: value}))
        if resolved != preset:
            kept[name] = _as_resolved(name, value, resolved)
    return canonical(kept)


def _as_resolved(name: str, value: Any, resolved: Table) -> Any:
    """The value that the configuration has for a setting; a table, or what stands for one, as it is, since it is merged with the preset."""
    found: Any = resolved
    for part in name.split("."):
        found = found[part]
    return value if isinstance(found, Mapping) else found


def _resolved(outline: Outline, job: Job) -> Table:
    """The configuration of a job; one setting of several may lack the others that it needs, so they are not checked together here."""
    kind = job.method_class
    return check_names(kind.Options, *preset_tables(outline, kind), *job.tables).to_dict()


def _check_table(table: Mapping[str, Any], entries: Mapping[str, Entry], where: str) -> None:
    """Every key is known and holds what it must, and none is lacking."""
    for name, value in table.items():
        if name not in entries:
            raise ConfigError(f"{where}: {unknown('key', name, entries)}")
        if not entries[name].fits(value):
            raise ConfigError(f"{where}: {name} must be {entries[name].must_be}, not {value!r}")
    lacking = [name for name, entry in entries.items() if entry.needed and name not in table]
    if lacking:
        raise ConfigError(f"{where} lacks {', '.join(sorted(lacking))}")


@contextlib.contextmanager
def _wrong_in(where: str) -> Iterator[None]:
    """What is wrong in the block is wrong in that place of a file, and the error says so."""
    try:
        yield
    except AfafError as error:
        raise ConfigError(f"{where}: {error}") from None
