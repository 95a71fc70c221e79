"""Presets: the settings that belong to a stream, and per method what differs. One TOML file a stream, found by the stream's name."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from afaf.streams.tasks import Outline


def preset_names() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in files(__package__).iterdir() if entry.name.endswith(".toml"))


def preset_tables(outline: Outline, method: str) -> list[dict[str, Any]]:
    """The tables for a stream and a method, the general before the particular."""
    if outline.name in preset_names():
        table = tomllib.loads((files(__package__) / f"{outline.name}.toml").read_text(encoding="utf-8"))
    else:
        table = for_any_stream(len(outline))
    particular = table.pop("methods", {}).get(method, {})
    return [table, particular]


def for_any_stream(n_tasks: int) -> dict[str, Any]:
    """Settings for a stream nobody has tuned for: each task gets its share of the last hidden layer, the rest is generous."""
    output = min(20.0, 100 // max(n_tasks, 1))
    return {
        "network": {"name": "auto"},
        "learn": {"epochs": 20, "batch_size": 32, "lr": 0.1},
        "sparse": {
            "alloc": {"conv": 50.0, "fc": 30.0, "output": output},
            "density": {"conv": 30.0, "fc": 30.0, "output": 70.0},
            "fixed": {"conv": min(20.0, 100 // n_tasks), "fc": min(20.0, 100 // n_tasks), "output": 100.0},
        },
        "methods": {"afaf": {"method": {"l_reuse": 3, "first_reuse": 3}}},
    }
