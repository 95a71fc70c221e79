"""What was found out about numbers that differ from the paper's: explanations.toml, set beside them in the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afaf.errors import ConfigError, unknown
from afaf.methods import method_names
from afaf.report.measured import Shape
from afaf.runs.config import read_toml
from paper.measured import DERIVED, STORED
from paper.printed import paper

KEYS = {"stream", "method", "metric", "settings", "shown_by", "text"}


@dataclass(frozen=True)
class Explanation:
    """A text about some numbers, and which runs show that it is so."""

    entry: Mapping[str, Any]

    @property
    def text(self) -> str:
        return str(self.entry["text"])

    def is_about(self, what: Shape, metric: str) -> bool:
        asked = [(what.stream, self.entry.get("stream")), (what.method, self.entry.get("method")), (metric, self.entry.get("metric"))]
        named = all(names is None or value in _listed(names) for value, names in asked)
        return named and self.entry.get("settings", dict(what.settings)) == what.settings

    def shown_by(self, what: Shape) -> list[Shape]:
        """The runs to look at instead of `what`: the same with further settings, or also of another method."""
        return [
            Shape(what.stream, instead.get("method", what.method), {**what.settings, **instead.get("settings", {})})
            for instead in _listed(self.entry.get("shown_by", []))
        ]


@dataclass(frozen=True)
class Explanations:
    entries: Sequence[Explanation] = ()

    @classmethod
    def read(cls, path: Path) -> Explanations:
        table = read_toml(path)
        entries = table.get("explanation", [])
        if not isinstance(entries, list) or set(table) - {"explanation"}:
            raise ConfigError(f"{path}: explanations are written as [[explanation]], and nothing else stands there")
        for number, entry in enumerate(entries, 1):
            wrong = what_is_wrong_with(entry)
            if wrong:
                raise ConfigError(f"{path}: [[explanation]] number {number} {wrong}")
        return cls([Explanation(entry) for entry in entries])

    def of(self, what: Shape, metric: str) -> Explanation | None:
        """The first that is about this number."""
        return next((explanation for explanation in self.entries if explanation.is_about(what, metric)), None)


def what_is_wrong_with(entry: Any) -> str | None:
    """Why an entry cannot be used, if so."""
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str) or not entry["text"].strip():
        return "needs a text"
    wrong = _unknown_names(entry, KEYS, "key") or _unknown_words(entry) or _wrong_settings(entry.get("settings", {}), "settings")
    return wrong or next(filter(None, map(_wrong_evidence, _listed(entry.get("shown_by", [])))), None)


def _wrong_evidence(instead: Any) -> str | None:
    """Of one entry of shown_by."""
    if not isinstance(instead, dict):
        return "has a shown_by that is no table: give shown_by.settings, and shown_by.method where it is another"
    if not instead.get("settings") and "method" not in instead:
        return "has a shown_by without settings"
    return (
        _unknown_names(instead, {"method", "settings"}, "key of shown_by")
        or _unknown_names([instead.get("method", "afaf")], method_names(), "method")
        or _wrong_settings(instead.get("settings", {}), "shown_by.settings")
    )


def _unknown_words(entry: Mapping[str, Any]) -> str | None:
    """Of stream, method and metric, one or a list each."""
    known = {"stream": paper()["streams"], "method": method_names(), "metric": (*STORED, *DERIVED)}
    for key, valid in known.items():
        wrong = _unknown_names(_listed(entry.get(key, [])), valid, key)
        if wrong:
            return wrong
    return None


def _listed(one_or_more: Any) -> list[Any]:
    return one_or_more if isinstance(one_or_more, list) else [one_or_more]


def _unknown_names(names: Iterable[Any], valid: Iterable[str], kind: str) -> str | None:
    return next((f"has an {unknown(kind, str(name), valid)}" for name in names if name not in set(valid)), None)


def _wrong_settings(settings: Any, name: str) -> str | None:
    if not isinstance(settings, dict) or any(isinstance(value, dict) and "." not in key for key, value in settings.items()):
        return f'has {name} that are no table of settings, written like {{ "learn.lr" = 0.1 }}'
    return None
