"""Presets: the settings that belong to a stream, and per method what differs. One TOML file a stream, found by the stream's name."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from afaf.methods.base import Method
from afaf.streams.tasks import Outline

BATCH_SIZE = 32
STEPS = 1500  # that a task should at least be given where nobody has tuned: sparse networks leave the plateau of chance late


def preset_names() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in files(__package__).iterdir() if entry.name.endswith(".toml"))


def preset_tables(outline: Outline, method: type[Method[Any]]) -> list[dict[str, Any]]:
    """The tables for a stream and a method, the general before the particular.

    A method without an entry of its own has that of the nearest method it derives from: a variant is compared under the same settings.
    """
    if outline.name in preset_names():
        table = tomllib.loads((files(__package__) / f"{outline.name}.toml").read_text(encoding="utf-8"))
    else:
        table = for_any_stream(outline)
    entries = table.pop("methods", {})
    names = [getattr(ancestor, "name", "") for ancestor in method.__mro__]
    return [table, next((entries[name] for name in names if name in entries), {})]


def suitable_network(outline: Outline) -> str:
    """A network that such images or vectors fit."""
    if len(outline.input_shape) == 1 or min(outline.input_shape[1:]) < 8:
        return "mlp"
    return "alexnet" if min(outline.input_shape[1:]) >= 20 else "small-cnn"


def for_any_stream(outline: Outline) -> dict[str, Any]:
    """Settings for a stream nobody has tuned for: each task gets its share of the last hidden layer, the rest is generous."""
    n_tasks = len(outline)
    network = suitable_network(outline)
    share = min(20.0, 100 // n_tasks)  # of the last hidden layer, and of what a task may fix elsewhere
    density = min(30.0, 120 // n_tasks)  # so that every task finds unowned pairs, without reuse too
    batches = max(1, min(outline.train_counts) // BATCH_SIZE)
    return {
        "network": {"name": network},
        "learn": {"epochs": min(200, max(20, -(-STEPS // batches))), "batch_size": BATCH_SIZE, "lr": 0.1},
        "sparse": {
            "alloc": {"conv": 50.0, "fc": 50.0, "output": share},
            "density": {"conv": density, "fc": density, "output": 70.0},
            "fixed": {"conv": share, "fc": share, "output": 100.0},
        },
        "methods": {
            "afaf": {"method": {"l_reuse": {"mlp": 2, "small-cnn": 3, "alexnet": 4}[network], "first_reuse": 3}},
            "packnet": {"method": {"share": 10000 // n_tasks / 100}},  # in percent, rounded down so that all tasks fit
            "isolated": {"method": {"share": 10000 // n_tasks / 100}},
            "ewc": {"method": {"penalty": "proximal"}},  # however strong the paper's strengths are here, they cannot diverge
            "mas": {"method": {"penalty": "proximal"}},
        },
    }
