"""The size of a task's sub-network in whole numbers, from percentages set per layer and per range of tasks.

All numbers are rounded down, in exact arithmetic: 0.7 of 64 maps are 44.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Annotated

from afaf.checked import Shorthand
from afaf.errors import ConfigError, unknown
from afaf.network.spec import NetworkSpec

Percentage = Annotated[dict[str, float | dict[str, float]], Shorthand("all")]
"""Percentages by role (conv, fc, output), by layer ("conv1", "dense2"; a density by "W_3") or for "all" layers; each value a number,
or a table of task ranges: {"1-4": 17, "5-": 10}. The more specific entry wins; a range that misses a task leaves it to the next one."""


@dataclass(frozen=True)
class Sizes:
    """Whole numbers for one task, by group (`alloc`, `fixed`) and by l of W_l (`connections`)."""

    alloc: dict[int, int]
    connections: dict[int, int]
    fixed: dict[int, int]


def share(percent: float, of: int) -> int:
    """percent % of a whole number, rounded down."""
    return floor(Fraction(str(percent)) * of / 100)


def equal_share(n: int) -> float:
    """The percentage with which each of n tasks gets the n-th part of a layer; rounded up, because `share` rounds down."""
    return ceil(10**8 / n) / 10**6


def rest(percent: float, of: int) -> int:
    """A whole number less percent % of it, rounded down."""
    return floor((100 - Fraction(str(percent))) * of / 100)


def sizes(spec: NetworkSpec, alloc: Percentage, density: Percentage, fixed: Percentage, task: int, n_classes: int) -> Sizes:
    """alloc_l, n_l and fixed_l of a task (numbered from 1) that brings `n_classes` classes."""
    allocated = {1: spec.layer(1).size, spec.L: n_classes}
    for s in spec.hidden_groups:
        allocated[s] = share(_of_layer(alloc, "sparse.alloc", spec, s, task), spec.layer(s).size)
    connections = {}
    for l, edge in enumerate(spec.edges, 1):
        pairs = edge.pairs(allocated[edge.source_group], allocated[edge.target_group])
        connections[l] = share(_look_up(density, [edge.name, edge.role, "all"], task, "sparse.density"), pairs)
    kept = {s: share(_of_layer(fixed, "sparse.fixed", spec, s, task), allocated[s]) for s in spec.hidden_groups}
    return Sizes(allocated, connections, kept)


def check_percentage(percentage: Percentage, section: str, spec: NetworkSpec) -> None:
    """Refuse keys that name no layer of this network, invalid ranges, and values outside 0..100."""
    layers = {_key(spec, s) for s in spec.hidden_groups}
    if section.endswith("density"):
        layers = {edge.name for edge in spec.edges}
    valid = {"all", "conv", "fc", "output"} | layers
    for name, value in percentage.items():
        if name not in valid:
            raise ConfigError(unknown(f"key in {section}", name, valid))
        for tasks, number in value.items() if isinstance(value, dict) else [("1-", value)]:
            _parse_range(tasks, f"{section}.{name}")
            if not 0 <= number <= 100:
                raise ConfigError(f"{section}.{name} = {number} is not a percentage: it must lie in 0..100")


def _key(spec: NetworkSpec, l: int) -> str:
    return spec.layer(l).name.replace(" ", "")


def _of_layer(percentage: Percentage, section: str, spec: NetworkSpec, l: int, task: int) -> float:
    return _look_up(percentage, [_key(spec, l), spec.layer(l).role, "all"], task, section)


def _look_up(percentage: Percentage, names: list[str], task: int, section: str) -> float:
    for name in names:
        value = percentage.get(name)
        if isinstance(value, dict):
            for tasks, number in value.items():
                first, last = _parse_range(tasks, f"{section}.{name}")
                if first <= task <= last:
                    return number
        elif value is not None:
            return value
    raise ConfigError(f"{section} says nothing about {names[0]} in task {task}: set {section}.{names[1]} or {section}.all")


def _parse_range(text: str, where: str) -> tuple[float, float]:
    match = re.fullmatch(r"(\d{1,9})(-(\d{0,9}))?", text)
    if not match:
        raise ConfigError(f"{where}: '{text}' is not a range of tasks: write 3, 1-4 or 5-")
    first = int(match[1])
    last = first if match[2] is None else int(match[3]) if match[3] else float("inf")
    return first, last
