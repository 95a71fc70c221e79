"""Linear discriminant analysis with shrinkage, from sums (streaming LDA: Hayes and Kanan, 2020).

Classes are Gaussians of one covariance, S = (1 - shrinkage) within + shrinkage variance I. With few images the covariance within classes
is singular; shrinkage makes it invertible and, at 1, gives the nearest class mean.
"""

from __future__ import annotations

import torch

from afaf.heads.nearest_mean import variance
from afaf.heads.sums import Linear, Sums, log_priors

SHRINKAGE = 0.3


def solve(sums: Sums, *, shrinkage: float = SHRINKAGE, balance: bool = True) -> Linear:
    """Logits are the log posteriors of the classes, up to a constant."""
    covariance = (1 - shrinkage) * sums.within()
    covariance.diagonal().add_(shrinkage * variance(sums))
    factor = torch.linalg.cholesky(covariance)
    means = sums.means
    weights = torch.cholesky_solve(means.T, factor).T
    return Linear(weights, log_priors(sums, balance) - (weights * means).sum(1) / 2)
