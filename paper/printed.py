"""What the paper prints, as data."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def paper() -> dict[str, Any]:
    """printed.toml: tables, names of streams and methods, and what the text prints."""
    return tomllib.loads((files(__package__) / "printed.toml").read_text(encoding="utf-8"))


def title_of(stream: str) -> str:
    """A stream as the paper calls it."""
    return str(paper()["streams"].get(stream, stream))


def method_title(method: str) -> str:
    """A method as the paper calls it."""
    return str(paper()["methods"].get(method, method))
