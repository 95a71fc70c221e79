"""Heads in closed form: functions of sums over images, independent of the order and grouping of the calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from afaf.errors import ConfigError, unknown
from afaf.heads import lda, nearest_mean, projection, ridge
from afaf.heads.sums import Linear


@dataclass(frozen=True)
class Head:
    name: str
    solve: Callable[..., Linear]  # (sums, *, balance, and the head's own options)
    projects: bool = False  # whether the features go through a random projection first
    options: tuple[str, ...] = ()


HEADS = {
    head.name: head
    for head in (
        Head("nearest-mean", nearest_mean.solve),
        Head("lda", lda.solve, options=("shrinkage",)),
        Head("ridge", ridge.solve, options=("strength",)),
        Head("projection", projection.solve, projects=True, options=("strength",)),
    )
}
DEFAULT = "lda"


def find_head(name: str) -> Head:
    if name not in HEADS:
        raise ConfigError(unknown("head", name, HEADS))
    return HEADS[name]
