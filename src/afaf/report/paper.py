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
