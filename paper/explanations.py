"""Explanations of numbers that differ from the paper's: explanations.toml, set beside them in the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from afaf.checked import build
from afaf.errors import ConfigError, unknown
from afaf.methods import method_names
from afaf.report.measured import Shape
from afaf.runs.config import read_toml
from paper.measured import DERIVED, STORED
from paper.printed import paper

LISTS = ("stream", "method", "metric", "shown_by")  # one entry may stand without its list


@dataclass(frozen=True)
class ShownBy:
    """Runs that show it: the same with further settings, or also of another method."""

    settings: dict[str, Any] = field(default_factory=dict)
    method: str | None = None


@dataclass(frozen=True)
class Explanation:
    """A text about some numbers, and which runs show that it is so. An empty list means any."""

    text: str
    stream: tuple[str, ...] = ()
    method: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    settings: dict[str, Any] | None = None
    shown_by: tuple[ShownBy, ...] = ()

    def is_about(self, what: Shape, metric: str) -> bool:
        asked = [(what.stream, self.stream), (what.method, self.method), (metric, self.metric)]
        return all(not names or value in names for value, names in asked) and self.settings in (None, what.settings)

    def runs_that_show(self, what: Shape) -> list[Shape]:
        """The runs to look at instead of `what`."""
        return [Shape(what.stream, instead.method or what.method, {**what.settings, **instead.settings}) for instead in self.shown_by]

    def check(self) -> None:
        """Refuse names that do not exist and settings that are not written like "learn.lr"."""
        if not self.text.strip():
            raise ConfigError("text must not be empty")
        known = {"stream": paper()["streams"], "method": method_names(), "metric": (*STORED, *DERIVED)}
        methods = [instead.method for instead in self.shown_by if instead.method]
        for kind, names in {"stream": self.stream, "metric": self.metric, "method": (*self.method, *methods)}.items():
            for name in names:
                if name not in known[kind]:
                    raise ConfigError(unknown(kind, name, known[kind]))
        for settings in (self.settings or {}, *(instead.settings for instead in self.shown_by)):
            if any(isinstance(value, dict) and "." not in name for name, value in settings.items()):
                raise ConfigError('settings must be a table written like { "learn.lr" = 0.1 }')
        if any(not instead.settings and instead.method is None for instead in self.shown_by):
            raise ConfigError("shown_by lacks settings")


@dataclass(frozen=True)
class Explanations:
    explanation: Sequence[Explanation] = ()

    @classmethod
    def read(cls, path: Path) -> Explanations:
        table = read_toml(path)
        if set(table) - {"explanation"}:
            raise ConfigError(f"{path}: {unknown('table', next(iter(table)), ['explanation'])}")
        entries = table.get("explanation", [])
        listed = [_with_lists(entry) for entry in entries] if isinstance(entries, list) else entries
        try:
            read: list[Explanation] = build(list[Explanation], listed, "explanation")
            for explanation in read:
                explanation.check()
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        return cls(read)

    def of(self, what: Shape, metric: str) -> Explanation | None:
        """The first that is about this number."""
        return next((explanation for explanation in self.explanation if explanation.is_about(what, metric)), None)


def _with_lists(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {name: [value] if name in LISTS and not isinstance(value, list) else value for name, value in entry.items()}
