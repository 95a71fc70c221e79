"""Linear discriminant analysis with shrinkage, from sums (streaming LDA: Hayes and Kanan, 2020).

Classes are Gaussians of one covariance, S = (1 - shrinkage) within + shrinkage variance I. With few images the covariance within classes
is singular; shrinkage makes it invertible and, at 1, gives the nearest class mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from afaf.heads.nearest_mean import variance
from afaf.heads.sums import Linear, Sums, log_priors


def solve(sums: Sums, *, shrinkage: float | None = None, balance: bool = True) -> Linear:
    """Logits are the log posteriors of the classes, up to a constant."""
    means = sums.means
    weights = torch.cholesky_solve(means.T, shrunk_factor(sums, shrinkage)).T
    return Linear(weights, log_priors(sums, balance) - (weights * means).sum(1) / 2)


def shrunk_factor(sums: Sums, shrinkage: float | None = None) -> Tensor:
    """The lower Cholesky factor of the shrunk covariance."""
    shrinkage = suitable_shrinkage(sums) if shrinkage is None else shrinkage
    covariance = (1 - shrinkage) * sums.within()
    covariance.diagonal().add_(shrinkage * variance(sums))
    factor: Tensor = torch.linalg.cholesky(covariance)
    return factor


def suitable_shrinkage(sums: Sums) -> float:
    """0.5 with few images, less when there are many times more images than features: benchmarks/heads.py compares fixed values."""
    d = sums.features
    return 0.5 * d / (d + sums.images / 10)
