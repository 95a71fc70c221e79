"""A run's configuration: typed sections, built from presets, TOML files and `section.key=value`, each overriding the one before.

A key that does not exist or a value of the wrong type is an error that names the key and the nearest valid one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from afaf.errors import ConfigError, unknown
from afaf.evaluation.predict import EvaluateSettings
from afaf.network.zoo import DropoutAt, Norm
from afaf.subnets.sizes import Percentage
from afaf.training.engines import EngineName, Precision
from afaf.training.settings import LearnSettings, Settings, SparseSettings

Table = dict[str, Any]
_PERCENT = typing.get_args(Percentage)[1]  # how a table of percentages is told from any other


@dataclass(frozen=True)
class StreamSettings:
    """How a stream of one's own data is cut into tasks. The built-in streams need none of it; `fit` is for Mix alone."""

    classes_per_task: int = 2
    order: str = ""  # a file that lists the classes in order of arrival, one task a line
    size: int = 32  # images are brought to size x size pixels
    test_fraction: float = 0.2
    unreadable: Literal["error", "skip"] = "error"
    fit: Literal["pad", "resize"] = "pad"  # MNIST and Fashion-MNIST to 32x32: zeros around (released code), or resized (as printed)


@dataclass(frozen=True)
class NetworkSettings:
    name: str = "alexnet"  # or small-cnn, mlp; a stream without a preset gets the one that suits its images
    norm: Norm = "none"  # batch: batch norm after the pools, and no dropout
    dropout: float = 0.2
    dropout_at: DropoutAt = "code"  # code: three places, as released; paper: two places, as printed
    outputs: Literal["reserved", "grown"] = "reserved"  # output rows for the whole stream, or added task by task


@dataclass(frozen=True)
class RunSettings:
    validation: float = 0.0  # fraction of each task's training images set aside; seeded, stratified
    evaluate_on: Literal["test", "validation"] = "test"
    engine: EngineName = "auto"  # eager: the whole network; compact: the part that matters; graphed: the same, captured (CUDA)
    precision: Precision = "tf32"  # of products on a GPU, with weights in fp32: fp32, tf32 or bf16
    images: int = 0  # of each class, at most, in each part: for trying things out; 0: all
    checkpoint: float | None = 30.0  # seconds between checkpoints, at ends of epochs; 0: after each epoch; none: at ends of tasks only
    chunk: int | None = None  # MiB of an epoch computed ahead of its steps; less needs less memory on the device; none: the engine's own


@dataclass(frozen=True)
class Config:
    """Everything a run depends on besides its stream, seed and device."""

    method: Any
    stream: StreamSettings = field(default_factory=StreamSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    learn: LearnSettings = field(default_factory=LearnSettings)
    sparse: SparseSettings = field(default_factory=SparseSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    run: RunSettings = field(default_factory=RunSettings)

    @property
    def settings(self) -> Settings:
        return Settings(self.learn, self.sparse)

    def to_dict(self) -> Table:
        return dataclasses.asdict(self)


def build_config(options: type[Any], *tables: Mapping[str, Any]) -> Config:
    """The typed configuration that these tables add up to, later ones first in rank; `options` types the section `method`."""
    config = check_names(options, *tables)
    check_values(config)
    return config


def check_names(options: type[Any], *tables: Mapping[str, Any]) -> Config:
    """Every key exists and its value has the right type: what can be said of settings before their stream is known."""
    merged: Table = {}
    for table in tables:
        merged = merge(merged, table)
    sections = {f.name: f for f in dataclasses.fields(Config)}
    for name in merged:
        if name not in sections:
            raise ConfigError(unknown("section", name, sections))
    types_of = {**typing.get_type_hints(Config), "method": options}
    return Config(**{name: build(types_of[name], merged.get(name, {}), name) for name in sections})


def check_values(config: Config) -> None:
    """Values that no network and no stream could make sense of."""
    positive = {
        "learn.epochs": config.learn.epochs,
        "learn.batch_size": config.learn.batch_size,
        "learn.lr": config.learn.lr,
        "evaluate.batch_size": config.evaluate.batch_size,
    }
    for name, value in positive.items():
        if not 0 < value < float("inf"):
            raise ConfigError(f"{name} must be greater than 0 and finite, not {value}")
    for name, value in {"network.dropout": config.network.dropout, "run.validation": config.run.validation}.items():
        if not 0 <= value < 1:
            raise ConfigError(f"{name} must lie in 0..1, 1 excluded, not {value}")
    if config.learn.patience < 0:
        raise ConfigError(f"learn.patience must be 0 (a constant rate) or greater, not {config.learn.patience}")
    if config.run.images < 0:
        raise ConfigError(f"run.images must be 0 (all) or greater, not {config.run.images}")
    if config.run.checkpoint is not None and not 0 <= config.run.checkpoint < float("inf"):
        raise ConfigError(f"run.checkpoint must be 0 or greater and finite, or none, not {config.run.checkpoint}")
    if config.run.chunk is not None and config.run.chunk < 1:
        raise ConfigError(f"run.chunk must be at least 1 (MiB), or none, not {config.run.chunk}")
    if config.run.evaluate_on == "validation" and config.run.validation == 0:
        raise ConfigError("run.evaluate_on=validation needs a validation part: set run.validation, for example to 0.1")


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Tables within tables are merged; anything else is replaced."""
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def parse_set(assignments: Sequence[str]) -> Table:
    """`section.key=value` strings as a table; values are read as TOML, anything that is not TOML is a string."""
    table: Table = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or "." not in name:
            raise ConfigError(f"--set {assignment}: write section.key=value, for example learn.epochs=10")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        for part in reversed(name.strip().split(".")):
            value = {part: value}
        table = merge(table, value)
    return table


def read_config_file(path: Path) -> list[Table]:
    """A configuration from a TOML file, or from the config.json of a run, which is all there was: of the preset nothing remains."""
    try:
        text = path.read_text(encoding="utf-8")
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} is not valid {path.suffix.lstrip('.').upper() or 'TOML'}: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path} holds no table of settings")
    if path.suffix == ".json" and isinstance(table.get("config"), dict):
        return instead_of_preset(table["config"])
    return [table]


def instead_of_preset(stored: Table) -> list[Table]:
    """Tables that leave nothing of a preset below them: where a setting replaced one of its tables, its keys do not come back."""
    return [dict.fromkeys(stored), stored]


def build(kind: Any, value: Any, where: str) -> Any:
    """`value` as the type asked for, or an error that names the place."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} must be a table of settings, not {value!r}")
        hints = typing.get_type_hints(kind)
        names = [f.name for f in dataclasses.fields(kind)]
        for name in value:
            if name not in names:
                raise ConfigError(unknown("key", f"{where}.{name}", [f"{where}.{n}" for n in names]))
        return kind(**{name: build(hints[name], value[name], f"{where}.{name}") for name in names if name in value})
    origin = typing.get_origin(kind)
    if origin is Literal:
        if value not in typing.get_args(kind):
            raise ConfigError(unknown(f"value of {where}", str(value), map(str, typing.get_args(kind))))
        return value
    if origin in (tuple, list):
        if not isinstance(value, (tuple, list)):
            raise ConfigError(f"{where} must be a list, not {value!r}")
        item = typing.get_args(kind)[0]
        return origin(build(item, entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if origin is dict and typing.get_args(kind)[1] is not _PERCENT:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} must be a table, not {value!r}")
        return {name: build(typing.get_args(kind)[1], entry, f"{where}.{name}") for name, entry in value.items()}
    if origin is dict:
        table = value if isinstance(value, Mapping) else {"all": value}
        return {
            name: dict(entry) if isinstance(entry, Mapping) else build(float, entry, f"{where}.{name}") for name, entry in table.items()
        }
    if origin in (typing.Union, types.UnionType):
        return _one_of(typing.get_args(kind), value, where)
    return _scalar(kind, value, where)


def _one_of(kinds: Sequence[Any], value: Any, where: str) -> Any:
    """The first of several types that the value fits; "none" stands for no value."""
    if type(None) in kinds and value in (None, "none"):
        return None
    options = [kind for kind in kinds if kind is not type(None)]
    for kind in options[:-1]:
        with contextlib.suppress(ConfigError):
            return build(kind, value, where)
    return build(options[-1], value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise ConfigError(f"{where} must be {words.get(kind, kind)}, not {value!r}")
    return value
