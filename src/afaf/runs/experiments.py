"""Experiments: a table or figure of the paper as a grid of runs, in a TOML file.

title = "..."           feeds = "Table 3"        keep = ["ledger"]   (optional: what is kept besides accuracies, see keep.py)
[[grid]]                streams x methods x variants x seeds 0..N-1
streams = [...]         methods = [...]          seeds = 5
[grid.variants]         each a table of the settings that differ from the preset; without any, the preset as it is
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from afaf.errors import AfafError, CapacityError, ConfigError, unknown
from afaf.runs.config import Table, build_config
from afaf.runs.keep import check_keep
from afaf.runs.presets import preset_tables
from afaf.runs.runner import method_class, set_up, settings_table
from afaf.runs.store import Key, Line, key_of
from afaf.streams.benchmarks import outline_of
from afaf.streams.tasks import Outline


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
        raise ConfigError(f"there are no experiments in {folder}: run this in a checkout of afaf, or name the folder with --experiments")
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
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    _check_keys(table, {"title", "feeds", "keep", "grid"}, {"title", "feeds", "grid"}, str(path))
    keep = tuple(table.get("keep", ()))
    check_keep(keep)
    runs: dict[Key, Planned] = {}
    for grid in table["grid"]:
        _check_keys(grid, {"streams", "methods", "variants", "seeds"}, {"streams", "methods", "seeds"}, f"{path}, grid")
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
    """Of these settings those that differ from the preset, sorted; settings that no run could have are refused.

    A sub-network that does not fit is not refused: that is an outcome.
    """
    outline = outline_of(stream)
    try:
        set_up(outline, method, *settings_table(None, settings))
    except CapacityError:
        pass
    except AfafError as error:
        raise ConfigError(f"{stream}, {method}: {error}") from None
    kept = {name: value for name, value in settings.items() if _resolved(outline, method, {name: value}) != _resolved(outline, method, {})}
    return dict(sorted(kept.items()))


def _resolved(outline: Outline, method: str, settings: Mapping[str, Any]) -> Table:
    kind = method_class(method)
    return build_config(kind.Options, *preset_tables(outline, kind), *settings_table(None, settings)).to_dict()


def _check_keys(table: Mapping[str, Any], valid: set[str], needed: set[str], where: str) -> None:
    for name in table:
        if name not in valid:
            raise ConfigError(f"{where}: {unknown('key', name, valid)}")
    lacking = needed - set(table)
    if lacking:
        raise ConfigError(f"{where} lacks {', '.join(sorted(lacking))}")
