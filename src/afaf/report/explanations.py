"""What was found out about numbers that differ from the paper's: results/explanations.toml, set beside them in REPRODUCTION.md."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afaf.errors import ConfigError
from afaf.report.measured import Shape

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
        named = all(names is None or value == names or (isinstance(names, list) and value in names) for value, names in asked)
        return named and self.entry.get("settings", dict(what.settings)) == what.settings

    def shown_by(self, what: Shape) -> Shape | None:
        """The runs to look at instead of `what`: the same with further settings, or also of another method."""
        instead = self.entry.get("shown_by")
        return None if instead is None else Shape(what.stream, instead.get("method", what.method), {**what.settings, **instead["settings"]})


@dataclass(frozen=True)
class Explanations:
    entries: Sequence[Explanation] = ()

    @classmethod
    def read(cls, folder: Path) -> Explanations:
        path = folder / "explanations.toml"
        if not path.exists():
            return cls()
        try:
            entries = tomllib.loads(path.read_text(encoding="utf-8")).get("explanation", [])
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from None
        if not isinstance(entries, list):
            raise ConfigError(f"{path}: explanations are written as [[explanation]]")
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
    if not isinstance(entry, dict) or "text" not in entry:
        return "needs a text"
    unknown = sorted(set(entry) - KEYS)
    if unknown:
        return f"has {', '.join(unknown)}; it may have {', '.join(sorted(KEYS))}"
    if "shown_by" in entry and not isinstance(entry["shown_by"], dict):
        return "has a shown_by that is no table of settings, and method where it is another"
    if "shown_by" in entry and not isinstance(entry["shown_by"].get("settings"), dict):
        return "has a shown_by without settings"
    return None
