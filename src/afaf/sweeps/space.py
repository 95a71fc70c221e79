"""The settings that a sweep tries: a TOML file in the shape of a configuration, with a range or choices for each setting.

[learn]
lr = { low = 0.001, high = 0.3, log = true }       # whole numbers if low and high are; `step` leaves values out
[method]
candidates = { choices = ["most", "random"] }
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from afaf.checked import build
from afaf.errors import AfafError, ConfigError
from afaf.methods.base import Method
from afaf.runs.config import Table, check_names, nested, parse_toml, read_toml
from afaf.runs.job import Job

KEYS = {"low", "high", "log", "step", "choices"}
FIXED = {"stream", "run"}  # sections that determine which images score a trial


@dataclass(frozen=True)
class Range:
    """The values of one setting: from low to high, or one of the choices."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    choices: list[Any] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> list[Any]:
        return self.choices or [self.low, self.high]

    def problem(self) -> str:
        """The reason why no value can be drawn from it; empty if there is none."""
        if self.choices:
            return "" if self.low is self.high is self.step is None and not self.log else "has choices and a range: give one of them"
        if self.low is None or self.high is None:
            return "needs low and high, or at least one of choices"
        if not self.low < self.high:
            return f"is empty: low = {self.low} is not below high = {self.high}"
        if self.log and (self.low <= 0 or self.step is not None):
            return "has log = true, for which low must be above 0, without step"
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            return f"has step = {self.step}, which must be above 0 and at most high - low"
        if self.whole and self.step is not None and self.step % 1:
            return f"has step = {self.step}, which must be a whole number, as low and high are"
        return ""


Space = dict[str, Range]


def read_space(path: Path, job: Job | None = None) -> Space:
    """The ranges of a file by setting, checked for a job if one is given; a ConfigError names the file and the key."""
    return _space(read_toml(path), str(path), job)


def shipped_space(method: type[Method[Any]]) -> Space:
    """The space that the package has for a method, or for the nearest one that it derives from."""
    folder = files(__package__) / "spaces"
    for ancestor in method.__mro__:
        file = folder / f"{getattr(ancestor, 'name', '')}.toml"
        if file.is_file():
            return _space(parse_toml(file.read_text(encoding="utf-8"), str(file)), str(file))
    raise ConfigError(f"there is no space for '{method.name}' in the package: write one and name it with --space")


def _space(table: Table, where: str, job: Job | None = None) -> Space:
    try:
        space: Space = {name: build(Range, value, name) for name, value in _leaves(table)}
        if not space:
            raise ConfigError("it names no setting")
        for name, one in space.items():
            if one.problem():
                raise ConfigError(f"{name} {one.problem()}")
        if job is not None:
            check_space(space, job)
    except AfafError as error:
        raise ConfigError(f"{where}: {error}") from None
    return space


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if not isinstance(value, Mapping):
            raise ConfigError(f"{prefix}{name} must be a table with low and high, or with choices")
        if KEYS & set(value):
            yield f"{prefix}{name}", value
        else:
            yield from _leaves(value, f"{prefix}{name}.")


def check_space(space: Space, job: Job) -> None:
    """Raise ConfigError for a setting that the method does not have, and for values that it cannot have. Reads no data."""
    for name, values in space.items():
        if name.partition(".")[0] in FIXED:
            raise ConfigError(f"{name} cannot be part of a space: it decides on which images a trial is judged; use --set")
        for value in values.ends:
            check_names(job.method_class.Options, *job.tables, nested(name, value))
