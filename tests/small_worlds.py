"""Small networks, streams and methods that the tests of dense methods and controls share."""

from __future__ import annotations

from typing import Any

import torch

from afaf.methods.base import Method
from afaf.network.spec import Layer, NetworkSpec
from afaf.training.learner import Learner
from afaf.training.settings import LearnSettings, Settings, SparseSettings
from conftest import small_stream
from worlds import World

CONV = {
    "none": (Layer("conv", 6, ("relu", "dropout", "pool")), Layer("dense", 12, ("relu", "dropout")), Layer("dense", 16)),
    "batch": (Layer("conv", 6, ("relu", "pool", "norm")), Layer("dense", 12, ("relu", "norm")), Layer("dense", 16)),
}


def small_spec(norm: str = "none", classes: int = 6, dropout: float = 0.2) -> NetworkSpec:
    return NetworkSpec("small", (1, 8, 8), CONV[norm], classes, dropout)


def world_of(
    method: type[Method[Any]],
    options: Any,
    *,
    norm: str = "none",
    classes: tuple[int, ...] = (2, 2, 2),
    epochs: int = 3,
    lr: float = 0.05,
    sparse: SparseSettings | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **learn: Any,
) -> World:
    """A method about to learn a small stream of images."""
    settings = Settings(LearnSettings(epochs=epochs, batch_size=7, lr=lr, **learn), sparse or SparseSettings())
    built = method(options, settings)
    stream = small_stream(list(classes), per_class=12)
    spec = small_spec(norm, sum(classes))
    built.check(spec, stream.outline)
    return World(spec, built, stream, seed, unit=built.unit, dtype=dtype)


def numbers(learner: Learner) -> dict[str, torch.Tensor]:
    """Every number that the network answers with."""
    from afaf.training.named import state_dict

    return state_dict(learner.network.parameters)
