"""Heads in closed form: functions of sums over images, independent of the order and grouping of the calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from afaf.errors import ConfigError, unknown
from afaf.heads import lda, nearest_mean, projection, ridge
from afaf.heads.sums import Linear


@dataclass(frozen=True)
class Head:
    name: str
    solve: Callable[..., Linear]  # (sums, *, balance, and the head's own options)
    projects: bool = False  # whether the features go through a random projection first
    options: Mapping[str, float] = field(default_factory=dict)  # the largest value of each; all are above 0


HEADS = {
    head.name: head
    for head in (
        Head("nearest-mean", nearest_mean.solve),
        Head("lda", lda.solve, options={"shrinkage": 1.0}),
        Head("ridge", ridge.solve, options={"strength": inf}),
        Head("projection", projection.solve, projects=True, options={"strength": inf}),
    )
}
DEFAULT = "lda"


def find_head(name: str) -> Head:
    if name not in HEADS:
        raise ConfigError(unknown("head", name, HEADS))
    return HEADS[name]
