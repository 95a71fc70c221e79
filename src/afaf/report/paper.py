"""What the paper prints, as data."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def paper() -> dict[str, Any]:
    """paper.toml."""
    return tomllib.loads((files(__package__) / "paper.toml").read_text(encoding="utf-8"))


def title_of(stream: str) -> str:
    """A stream as the paper calls it."""
    return str(paper()["streams"].get(stream, stream))


def method_title(method: str) -> str:
    """A method as the paper calls it."""
    return str(paper()["methods"].get(method, method))
