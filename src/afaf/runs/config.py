"""A run's configuration: typed sections, built from presets, TOML files and `section.key=value`, each overriding the one before.

A key that does not exist or a value of the wrong type is an error that names the key and the nearest valid one.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from afaf.bounds import Count, CountOrZero, NotNegative, Portion, Within, shown
from afaf.checked import build
from afaf.errors import ConfigError, unknown
from afaf.evaluation.predict import EvaluateSettings
from afaf.files import read_text
from afaf.network.zoo import DropoutAt, Norm
from afaf.runs.parts import PartsSettings
from afaf.streams.benchmarks import Normalise
from afaf.streams.tasks import Augment
from afaf.training.engines import EngineName, Precision
from afaf.training.settings import LearnSettings, Settings, SparseSettings

Table = dict[str, Any]
LARGEST_TEXT = 1 << 16  # characters of a file of settings
LONGEST_LINE = 1 << 12  # characters: reading a dotted key takes time that grows with the square of its length
DEEPEST = 8  # parts of a setting's name


@dataclass(frozen=True)
class StreamSettings:
    """How the user's own data becomes a stream. Of these settings, built-in streams of one dataset have only `order`.

    split-cifar100 also has `classes_per_task`; Mix has `fit` and `normalise`.
    """

    classes_per_task: Count | None = None  # None: 2 for own data, 10 for split-cifar100
    order: str = ""  # the classes in order of arrival, separated by commas; seed:7, a permutation; or a file, one task a line
    size: Annotated[int, Within(0, 4096)] = 32  # images are brought to size x size pixels
    test_fraction: Annotated[float, Within(0, 1, above=True, below=True)] = 0.2
    unreadable: Literal["error", "skip"] = "error"
    augment: Augment = "none"  # of training images: crop-flip for small photographs, resized-crop-flip for those of 64 pixels and more
    fit: Literal["pad", "resize"] = "pad"  # MNIST and Fashion-MNIST to 32x32: zeros around (released code), or resized (as printed)
    normalise: Normalise = "dataset"  # images of Mix: by their dataset's mean and deviation, or all by those of the first dataset


@dataclass(frozen=True)
class NetworkSettings:
    name: str = "alexnet"  # or another of the zoo; a stream without a preset gets the one that suits its images
    norm: Norm = "none"  # batch: batch norm, where the architecture has it, and no dropout
    width: Count | None = None  # maps or neurons of the first layer; the others scale with it; none: the network's own
    weights: Literal["seed", "module"] = "seed"  # initial values: drawn, or those of the torch.nn.Module that the network is traced from
    dropout: Portion = 0.2
    dropout_at: DropoutAt = "code"  # code: three places, as released; paper: two places, as printed
    outputs: Literal["reserved", "grown"] = "reserved"  # output rows for the whole stream, or added task by task


@dataclass(frozen=True)
class RunSettings:
    validation: Portion = 0.0  # fraction of each task's training images set aside; seeded, stratified
    evaluate_on: Literal["test", "validation"] = "test"
    engine: EngineName = "auto"  # eager: the whole network; compact: the part that matters; graphed: the same, captured (CUDA)
    precision: Precision = "tf32"  # of matrix products, with weights in fp32; on a CPU fp32, or bf16 if it has instructions for it
    images: CountOrZero = 0  # at most this many of each class in each part, for quick trials; 0: all
    checkpoint: NotNegative | None = 30.0  # seconds between checkpoints, at the end of an epoch; 0: every epoch; none: after tasks
    chunk: Annotated[int, Within(1, 1 << 20)] | None = None  # MiB of an epoch computed ahead; less saves memory; none: the engine's


@dataclass(frozen=True)
class Config:
    """Everything a run depends on besides its stream, seed and device."""

    method: Any
    stream: StreamSettings = field(default_factory=StreamSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    learn: LearnSettings = field(default_factory=LearnSettings)
    sparse: SparseSettings = field(default_factory=SparseSettings)
    parts: PartsSettings = field(default_factory=PartsSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    run: RunSettings = field(default_factory=RunSettings)

    @property
    def settings(self) -> Settings:
        return Settings(self.learn, self.sparse)

    def to_dict(self) -> Table:
        return dataclasses.asdict(self)


def build_config(options: type[Any], *tables: Mapping[str, Any]) -> Config:
    """The typed configuration from these tables; later ones override earlier ones. `options` is the type of the section `method`."""
    config = check_names(options, *tables)
    check_values(config)
    return config


def check_names(options: type[Any], *tables: Mapping[str, Any]) -> Config:
    """Check keys, types and bounds: everything that can be checked before the stream is known."""
    merged = merge(*tables)
    sections = {f.name: f for f in dataclasses.fields(Config)}
    for name in merged:
        if name not in sections:
            raise ConfigError(unknown("section", name, sections))
    types_of = {**typing.get_type_hints(Config), "method": options}
    return Config(**{name: build(types_of[name], merged.get(name, {}), name) for name in sections})


def check_values(config: Config) -> None:
    """Refuse values that contradict each other."""
    if config.run.evaluate_on == "validation" and config.run.validation == 0:
        raise ConfigError("run.evaluate_on=validation needs a validation part: set run.validation, for example to 0.1")
    learn = config.learn
    if learn.plateau and config.run.validation == 0:
        raise ConfigError("learn.schedule=plateau (or learn.patience) needs held-out images: set run.validation, for example to 0.1")
    if learn.patience and not learn.plateau:
        raise ConfigError(f"learn.patience is for learn.schedule=plateau, not for {learn.schedule}: leave one of them out")
    if learn.nesterov and (learn.optimiser != "sgd" or not learn.momentum):
        raise ConfigError("learn.nesterov needs learn.optimiser=sgd and learn.momentum, for example 0.9")
    if learn.momentum and learn.optimiser != "sgd":
        raise ConfigError(f"learn.momentum is for learn.optimiser=sgd, not for {learn.optimiser}: leave it out; adamw has beta1 and beta2")


def merge(*tables: Mapping[str, Any]) -> Table:
    """Later tables override earlier ones; tables within tables are merged."""
    merged: Table = {}
    for table in tables:
        for name, value in table.items():
            old = merged.get(name)
            merged[name] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def parse_set(assignments: Sequence[str]) -> Table:
    """`section.key=value` strings as a table; values are read as TOML, anything that is not TOML is a string."""
    table: Table = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        parts = name.strip().split(".")
        if not equals or len(parts) < 2:
            raise ConfigError(f"--set {shown(assignment)}: write section.key=value, for example learn.epochs=10")
        if len(parts) > DEEPEST:
            raise ConfigError(f"--set {shown(assignment)}: no setting has a name of {len(parts)} parts")
        table = merge(table, nested(name.strip(), _parse_value(name, text)))
    return table


def _parse_value(name: str, text: str) -> Any:
    try:
        parsed = parse_toml(f"value = {text}", f"--set {shown(name)}")
    except tomllib.TOMLDecodeError:
        return text
    if len(parsed) > 1:
        raise ConfigError(f"--set {name} has several lines: give each setting a --set of its own")
    return parsed["value"]


def nested(name: str, value: Any) -> Table:
    """{"a": {"b": value}} for the setting a.b."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return typing.cast(Table, value)


def parse_toml(text: str, where: str) -> Table:
    """TOML as a table. Raises TOMLDecodeError for invalid TOML, ConfigError for text that is too long or nested too deeply."""
    if len(text) > LARGEST_TEXT or max(map(len, text.splitlines()), default=0) > LONGEST_LINE:
        raise ConfigError(f"{where} is too long: settings have at most {LARGEST_TEXT:,} characters, and {LONGEST_LINE:,} in a line")
    return typing.cast(Table, _parse(tomllib.loads, text, where))


def _parse(parse: Callable[[str], Any], text: str, where: str) -> Any:
    try:
        return parse(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError):
        raise
    except ValueError as error:  # Python reads no int of more than 4,300 digits
        raise ConfigError(f"{where} holds a number that is too long: {error}") from None
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply") from None


def read_config_file(path: Path) -> list[Table]:
    """A configuration from a TOML file, or from the config.json of a run, which replaces the preset."""
    if path.suffix != ".json":
        return [read_toml(path)]
    table = _read(path, partial(_parse, json.loads), "JSON")
    if not isinstance(table, dict):
        raise ConfigError(f"{path} holds no table of settings")
    stored = table.get("config")
    return [dict.fromkeys(stored), stored] if isinstance(stored, dict) else [table]  # the first clears every section of a preset


def read_toml(path: Path) -> Table:
    """A TOML file as a table; a ConfigError names the file."""
    return typing.cast(Table, _read(path, parse_toml, "TOML"))


def _read(path: Path, parse: Callable[[str, str], Any], kind: str) -> Any:
    try:
        return parse(read_text(path), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid {kind}: {error}") from None
