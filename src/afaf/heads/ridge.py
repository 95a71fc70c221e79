"""Ridge regression onto one-hot labels, with a fixed strength or one chosen by generalised cross-validation.

With features f(x), one-hot labels y and n images, the head that minimises  sum |y - W f - b|^2 + lambda |W|^2  over *all* images so far
follows from their sums (`sums.py`), in whatever order they came.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from afaf.heads.sums import Linear, Sums

ROUNDING = 1e-14  # rounding may turn an eigenvalue of 0 into this share of the sum of squares
LINALG = threading.Lock()  # PyTorch loads its solvers for CUDA at the first call, which two threads must not make at once
STRENGTHS = torch.logspace(1, -6, 29, dtype=torch.float64)  # tried by cross-validation, strongest first, in units of the mean variance


def solve(sums: Sums, *, strength: float | None = None, balance: bool = True) -> Linear:
    """The head of least squared error over all images.

    With `balance`, the intercept is that of equally frequent classes, so that rare classes are not predicted less often.
    """
    weights, bias = least_squares(sums, strength)
    if balance:
        present = sums.counts > 0
        centre = sums.means[present].mean(0)
        bias = torch.ones_like(bias) / present.sum() - weights @ centre
    return Linear(weights, bias.masked_fill(sums.counts == 0, -torch.inf))  # a class without images is never the answer


def least_squares(sums: Sums, strength: float | None) -> tuple[Tensor, Tensor]:
    """W (classes, d) and b (classes) in closed form, with lambda = strength x the features' mean variance x n.

    Without a strength, use the one of least generalised cross-validation error, which follows from the sums too.
    """
    n = sums.counts.sum().clamp(min=1)  # without any image, all is 0
    mean = sums.totals.sum(0) / n
    gram = (sums.gram - n * torch.outer(mean, mean)) * (n > 1)  # one image, or none, does not vary
    cross = sums.totals.T - torch.outer(mean, sums.counts)
    smallest = ROUNDING * sums.gram.diagonal().sum() + torch.finfo(gram.dtype).tiny
    if strength is not None:
        gram.diagonal().add_(strength * gram.diagonal().mean().clamp(min=smallest))
        with LINALG:
            weights = torch.cholesky_solve(cross, torch.linalg.cholesky(gram)).T
        return weights, sums.counts / n - weights @ mean
    with LINALG:
        values, vectors = torch.linalg.eigh(gram)
    values = values.clamp(min=0)
    turned = vectors.T @ cross
    unit = values.mean().clamp(min=smallest)
    chosen = best_strength(values / unit, turned.square().sum(1) / unit, sums.counts)
    weights = (vectors @ (turned / (values + chosen * unit)[:, None])).T
    return weights, sums.counts / n - weights @ mean


def best_strength(values: Tensor, fitted: Tensor, counts: Tensor) -> float:
    """argmin over lambda of n RSS / (n - df)^2 (Golub, Heath and Wahba, 1979), where `values` are the Gram matrix's eigenvalues.

    RSS = |Y|^2 - sum fitted (values + 2 lambda) / (values + lambda)^2 and df = 1 + sum values / (values + lambda).
    """
    n = counts.sum()
    spread = (counts - counts.square() / n).sum()
    strengths = STRENGTHS.to(values.device)
    shrunk = values[None, :] + strengths[:, None]
    residual = spread - (fitted * (values + 2 * strengths[:, None]) / shrunk.square()).sum(1)
    freedom = 1 + (values / shrunk).sum(1)
    error = torch.where(freedom < n, residual.clamp(min=0) / (n - freedom).square(), torch.inf)
    return float(strengths[error.argmin()])
