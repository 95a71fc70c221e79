"""Presets: the settings that belong to a stream, and per method what differs. One TOML file a stream, found by the stream's name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from afaf.methods.base import Method
from afaf.network.spec import NetworkSpec
from afaf.network.zoo import CHAINS, describe, own_norm
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
    return _for_method(table, method)


def _for_method(table: dict[str, Any], method: type[Method[Any]]) -> list[dict[str, Any]]:
    entries = table.pop("methods", {})
    names = [getattr(ancestor, "name", "") for ancestor in method.__mro__]
    return [table, next((entries[name] for name in names if name in entries), {})]


def with_presets(outline: Outline, method: type[Method[Any]], tables: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The user's tables above the presets.

    With a network that the presets are not made for, the stream's says only how to learn: the sizes of sub-networks and l_reuse come
    from the network.
    """
    presets, given = preset_tables(outline, method), [dict(table) for table in tables]
    name = _given(given, "network", "name")
    if name is None or name in CHAINS:
        return [*presets, *given]
    how_to_learn = [{section: table[section] for section in table if section not in ("network", "sparse", "method")} for table in presets]
    norm, strict = own_norm(name), bool(_given(given, "method", "strict"))
    spec = describe(name, outline.input_shape, outline.n_classes, norm=norm, width=_given(given, "network", "width"))
    own = for_network(spec, len(outline), strict=strict)
    return [*how_to_learn, {"network": {"name": name, "norm": norm}}, *_for_method(own, method), *given]


def _given(tables: list[dict[str, Any]], section: str, key: str) -> Any:
    """The value that the tables give a setting, if any."""
    sections = [table[section] for table in tables if isinstance(table.get(section), Mapping)]
    return next((values[key] for values in reversed(sections) if key in values), None)


def for_network(spec: NetworkSpec, n_tasks: int, *, strict: bool = False) -> dict[str, Any]:
    """Sizes of sub-networks with which so many tasks fit, and a cut within the first two thirds of the edges, where one layer alone
    leads on. Under strict isolation, which fixes all of a task's neurons, each task gets its share of every layer."""
    clean = [l for l in range(2, spec.E) if spec.cut_below(l) == spec.edge(l).source == spec.edge(l).target - 1]
    early = [l for l in clean if 3 * l <= 2 * spec.E]
    table = sparse_table(n_tasks, max(early or [2]))
    if strict:
        table["sparse"]["alloc"] = {"all": table["sparse"]["alloc"]["output"]}
    return table


def suitable_network(outline: Outline) -> str:
    """A network that such images or vectors fit."""
    if len(outline.input_shape) == 1 or min(outline.input_shape[1:]) < 8:
        return "mlp"
    return "alexnet" if min(outline.input_shape[1:]) >= 20 else "small-cnn"


def for_any_stream(outline: Outline) -> dict[str, Any]:
    """Settings for a stream nobody has tuned for: each task gets its share of the last hidden layer, the rest is generous."""
    network = suitable_network(outline)
    batches = max(1, min(outline.train_counts) // BATCH_SIZE)
    return {
        "network": {"name": network},
        "learn": {"epochs": min(200, max(20, -(-STEPS // batches))), "batch_size": BATCH_SIZE, "lr": 0.1},
        **sparse_table(len(outline), {"mlp": 2, "small-cnn": 3, "alexnet": 4}[network]),
    }


def sparse_table(n_tasks: int, l_reuse: int) -> dict[str, Any]:
    """Each task gets its share of the last hidden layer, the rest is generous."""
    share = min(20.0, 100 // n_tasks)  # of the last hidden layer, and of what a task may fix elsewhere
    density = min(30.0, 120 // n_tasks)  # so that every task finds unowned pairs, without reuse too
    return {
        "sparse": {
            "alloc": {"conv": 50.0, "fc": 50.0, "output": share},
            "density": {"conv": density, "fc": density, "output": 70.0},
            "fixed": {"conv": share, "fc": share, "output": 100.0},
        },
        "methods": {
            "afaf": {"method": {"l_reuse": l_reuse, "first_reuse": 3}},
            "packnet": {"method": {"share": 10000 // n_tasks / 100}},  # in percent, rounded down so that all tasks fit
            "isolated": {"method": {"share": 10000 // n_tasks / 100}},
            "ewc": {"method": {"penalty": "proximal"}},  # however strong the paper's strengths are here, they cannot diverge
            "mas": {"method": {"penalty": "proximal"}},
        },
    }
