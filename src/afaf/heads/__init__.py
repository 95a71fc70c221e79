"""Heads in closed form: each is a function of sums over images, whatever the order and the cut of the calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from afaf.errors import ConfigError, unknown
from afaf.heads import lda, nearest_mean, projection, ridge
from afaf.heads.sums import Linear, Sums


@dataclass(frozen=True)
class Head:
    name: str
    summary: str
    solve: Callable[..., Linear]  # (sums, *, balance, and the head's own options)
    projects: bool = False  # whether the features go through a random projection first
    options: tuple[str, ...] = ()


HEADS = {
    head.name: head
    for head in (
        Head("nearest-mean", "the class whose mean is nearest", nearest_mean.solve),
        Head("lda", "linear discriminant analysis with shrinkage", lda.solve, options=("shrinkage",)),
        Head("ridge", "ridge regression, its strength by generalised cross-validation", ridge.solve, options=("strength",)),
        Head("projection", "ridge regression on randomly projected features", projection.solve, projects=True, options=("strength",)),
    )
}
DEFAULT = "lda"


def find_head(name: str) -> Head:
    if name not in HEADS:
        raise ConfigError(unknown("head", name, HEADS))
    return HEADS[name]


def solve(name: str, sums: Sums, **options: Any) -> Linear:
    """The head of this name that follows from the sums."""
    return find_head(name).solve(sums, **options)
