"""Presets: the settings for a stream and what differs per method, in one TOML file per stream, found by the stream's name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from torch import nn

from afaf.errors import ConfigError
from afaf.methods.base import Method
from afaf.network.spec import Edge, Layer, NetworkSpec
from afaf.network.zoo import describe, network_name, own_norm
from afaf.runs.presets.plus import is_plus, plus_table, wide_enough
from afaf.streams.tasks import Outline

BATCH_SIZE = 32
DENSE = 50.0  # percent of the pairs of its neurons that a task connects, if there are enough pairs
STEPS_OF_MLP = 300  # an MLP leaves the plateau of chance early; with more steps, the last task's logits outgrow the others
STEPS = 1500  # minimum for a task of an untuned stream: sparse networks leave the plateau of chance accuracy late


def preset_names() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in files(__package__).iterdir() if entry.name.endswith(".toml"))


def preset_tables(outline: Outline, method: type[Method[Any]]) -> list[dict[str, Any]]:
    """The tables for a stream and a method, general ones first.

    A method without an entry uses that of its nearest base class, so that variants are compared under the same settings.
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


def with_presets(
    outline: Outline,
    method: type[Method[Any]],
    tables: Sequence[Mapping[str, Any]],
    network: nn.Module | tuple[Layer, ...] | None = None,
) -> list[dict[str, Any]]:
    """The presets, then the user's tables, which override them; `network` is a network object given instead of a name.

    With a network other than the preset's, or under strict isolation, only the training settings of the preset apply: the sizes of
    sub-networks and l_reuse come from the network.
    """
    presets, given = preset_tables(outline, method), [dict(table) for table in tables]
    name, strict = setting_in(given, "network", "name"), bool(setting_in(given, "method", "strict"))
    if network is not None:
        if name not in (None, network_name(network)):
            raise ConfigError(f"two networks are given, network.name={name} and network={network_name(network)}: leave one out")
        given.append({"network": {"name": network_name(network)}})
    if is_plus(method):
        own = setting_in(presets, "network", "name")
        named = setting_in(given, "network", "name") or own
        table = plus_table(outline, own, named)
        if named != own and network is None and setting_in(given, "network", "width") is None:
            table["network"] |= wide_enough(outline, method, named, [table, *given])
        return [table, *given]
    if network is None and outline.name in preset_names() and not strict and name in (None, setting_in(presets, "network", "name")):
        return [*presets, *given]
    chosen = network if network is not None else name or setting_in(presets, "network", "name")
    how_to_learn = [{section: table[section] for section in table if section not in ("network", "sparse", "method")} for table in presets]
    as_preset = setting_in(presets, "network", "norm") if chosen == setting_in(presets, "network", "name") else None
    norm = as_preset or (own_norm(chosen) if isinstance(chosen, str) else "none")
    spec = describe(chosen, outline.input_shape, outline.n_classes, norm=norm, width=setting_in(given, "network", "width"))
    own = for_network(spec, len(outline), strict=strict)
    return [*how_to_learn, {"network": {"name": spec.name, "norm": norm}}, *_for_method(own, method), *given]


def setting_in(tables: list[dict[str, Any]], section: str, key: str) -> Any:
    """The value that the tables give a setting, if any."""
    sections = [table[section] for table in tables if isinstance(table.get(section), Mapping)]
    return next((values[key] for values in reversed(sections) if key in values), None)


def for_network(spec: NetworkSpec, n_tasks: int, *, strict: bool = False) -> dict[str, Any]:
    """Sizes of sub-networks with which `n_tasks` tasks fit, and an l_reuse within the first two thirds of the edges, where a single
    layer feeds all later ones.

    Each task gets its share of the last hidden layer, whose neurons are always new, so connections into it may be dense. Elsewhere
    all tasks draw from the same pairs; with AFAF, only tasks before the first reusing task draw below l_reuse. Strict isolation fixes all
    of a task's neurons, so each task gets its share of every layer, and all of its pairs are new.

    In a reusing task everything below l_reuse is frozen, norms included, and only the norms that a task uses change. So an engine can
    compute with a part of the network.
    """
    norms = {"norms": "used"}
    clean = [
        l for l in range(2, spec.E) if spec.cut_below(l) == spec.edge(l).source == spec.edge(l).target - 1 and not spec.edge(l).diagonal
    ]
    l_reuse = max([l for l in clean if 3 * l <= 2 * spec.E] or [2])
    share = min(20.0, 10000 // n_tasks / 100)  # percent, rounded down so that all tasks fit
    density = min(30.0, 120 // n_tasks)
    diagonal = [f"W_{l}" for l, edge in enumerate(spec.edges, 1) if strict and edge.diagonal]  # all neurons are new there, too
    reusing = {name: {"1-2": 100.0, "3-": 70.0} for name in diagonal}  # except AFAF's candidates: 30 % of a reusing task's

    def lasting(edges: Iterable[int], strictly: Mapping[str, Any]) -> dict[str, Any]:
        lasts = {f"W_{l}": max(density / min(2, spec.edge(l).groups), at_least(spec.edge(l))) for l in edges}
        return {"density": strictly if strict else lasts}

    def at_least(edge: Edge) -> float:
        """The density, in percent, of one connection if each neuron has only one."""
        return float(-(-200 // edge.outputs)) if edge.diagonal else 0.0

    shared = [l for l, edge in enumerate(spec.edges, 1) if edge.target_group not in (spec.last_hidden, spec.L)]
    return {
        "sparse": {
            "alloc": {"all": share} if strict else {"conv": 50.0, "fc": 50.0, "output": share},
            "density": {"conv": DENSE, "fc": DENSE, "output": 70.0},
            "fixed": {"conv": share, "fc": share, "output": 100.0},
        },
        "methods": {
            "afaf": {
                "method": {"l_reuse": l_reuse, "first_reuse": 3, **norms},
                "sparse": lasting((l for l in shared if l >= l_reuse), reusing),
            },
            "spacenet": {"sparse": lasting(shared, dict.fromkeys(diagonal, 100.0)), "method": norms},
            "isolated": {"sparse": lasting(shared, dict.fromkeys(diagonal, 100.0)), "method": {"share": 10000 // n_tasks / 100}},
            "packnet": {"method": {"share": 10000 // n_tasks / 100}},
            "ewc": {"method": {"penalty": "proximal"}},  # cannot diverge, however strong the paper's penalties are here
            "mas": {"method": {"penalty": "proximal"}},
        },
    }


def suitable_network(outline: Outline, maps_from: int = 8) -> str:
    """The network that suits these inputs; images with a side below `maps_from` pixels are treated as vectors."""
    side = min(outline.input_shape[1:], default=0)
    if side < maps_from:
        return "mlp"
    return "alexnet" if side >= 20 else "small-cnn"


def for_any_stream(outline: Outline) -> dict[str, Any]:
    """The network for a stream that nobody has tuned for, and how to learn it."""
    large = min(outline.input_shape[1:], default=0) >= 48
    network = "resnet18-imagenet" if large else suitable_network(outline, maps_from=20)
    batches = max(1, min(outline.train_counts) // BATCH_SIZE)
    steps = STEPS_OF_MLP if network == "mlp" else STEPS
    return {
        "network": {"name": network},
        "learn": {"epochs": min(200, max(20, -(-steps // batches))), "batch_size": BATCH_SIZE, "lr": 0.1},
    }
