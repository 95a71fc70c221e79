"""Held-out images, and probabilities that mean what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from afaf.randomness import generator

ENOUGH = 10  # held-out images from which a temperature is fitted


def held_out(labels: NDArray[Any], fraction: float, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Indices that are learned from and indices held out: of each class this share, rounded down, so that small classes lose nothing."""
    aside = []
    for c in sorted(set(labels.tolist())):
        index = np.flatnonzero(labels == c)
        order = torch.randperm(len(index), generator=generator(seed, "held out", c)).numpy()
        aside.append(index[order[: int(fraction * len(index))]])
    chosen = np.sort(np.concatenate(aside))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen


def fitted_temperature(logits: Tensor, target: Tensor) -> float:
    """The temperature at which held-out labels are likeliest, to 1 %; never below 1, for a few images all right are no proof."""
    grid = torch.logspace(0, 1, 231, dtype=torch.float64)
    losses = torch.stack([F.cross_entropy(logits.double() / t, target) for t in grid])
    return round(float(grid[losses.argmin()]), 4)


def calibration_error(probabilities: NDArray[Any], target: NDArray[Any], bins: int = 15) -> float:
    """Expected calibration error: how far confidence and accuracy lie apart, over bins of confidence, weighted by their images."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == target
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(confidence[place == b].mean() - right[place == b].mean()) * (place == b).mean() for b in range(bins) if (place == b).any()]
    return float(sum(gaps))
