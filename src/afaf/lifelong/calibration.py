"""Held-out images, and the calibration of probabilities on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from afaf.randomness import generator

ENOUGH = 10  # held-out images needed to fit a temperature


def held_out(labels: NDArray[Any], fraction: float, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Indices to learn from and indices held out: this fraction of each class, rounded down, so that small classes lose nothing."""
    aside = []
    for c in sorted(set(labels.tolist())):
        index = np.flatnonzero(labels == c)
        order = torch.randperm(len(index), generator=generator(seed, "held out", c)).numpy()
        aside.append(index[order[: int(fraction * len(index))]])
    chosen = np.sort(np.concatenate(aside))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen


def fitted_temperature(logits: Tensor, target: Tensor) -> float:
    """The temperature that maximises the likelihood of held-out labels, to 1 %; never below 1, since a few correct images prove nothing."""
    grid = torch.logspace(0, 1, 231, dtype=torch.float64)
    losses = torch.stack([F.cross_entropy(logits.double() / t, target) for t in grid])
    return round(float(grid[losses.argmin()]), 4)


def calibration_error(probabilities: NDArray[Any], target: NDArray[Any], bins: int = 15) -> float:
    """Expected calibration error: |confidence - accuracy| averaged over bins of confidence, weighted by their images."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == target
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(confidence[place == b].mean() - right[place == b].mean()) * (place == b).mean() for b in range(bins) if (place == b).any()]
    return float(sum(gaps))
