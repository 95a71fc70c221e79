"""Ridge regression from sums: a Gram matrix, added up in float64, stands for all earlier images.

With features f(x) (d numbers), one-hot labels y and n images so far, the sums are

    gram = sum f f'     cross = sum f y'     total = sum f     counts = sum y

and the head that minimises  sum |y - W f - b|^2 + lambda |W|^2  over *all* images so far follows from them, whatever order they came in.
"""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.training.named import Named

ROUNDING = 1e-14  # share of the sum of squares that rounding may leave of an eigenvalue of 0
LINALG = threading.Lock()  # PyTorch loads its solvers for CUDA at the first call, which two threads must not make at once
STRENGTHS = torch.logspace(1, -6, 29, dtype=torch.float64)  # tried by cross-validation, strongest first, in units of the mean variance


def add_to_sums(sums: Named, features: Tensor, labels: Tensor, rows: int) -> Named:
    """The sums with these images among them; `rows` output rows exist by now."""
    f = _exact(features)
    y = F.one_hot(labels.to(f.device), rows).to(f.dtype)
    new = {"gram": f.T @ f, "cross": f.T @ y, "total": f.sum(0), "counts": y.sum(0)}
    if not sums:
        return new
    grown = rows - len(sums["counts"])
    return {
        name: F.pad(sums[name], (0, grown)) + tensor if name in ("cross", "counts") else sums[name] + tensor for name, tensor in new.items()
    }


def sums_bytes(d: int, rows: int) -> int:
    return 8 * (d * d + d * rows + d + rows)


def solve(sums: Named, strength: float | None) -> tuple[Tensor, Tensor]:
    """W (rows, d) and b (rows) in closed form, with lambda = strength x the features' mean variance x n.

    Without a strength, the one of least generalised cross-validation error, which follows from the sums too.
    """
    n = sums["counts"].sum().clamp(min=1)  # without any image, all is 0
    mean = sums["total"] / n
    gram = sums["gram"] - n * torch.outer(mean, mean)
    cross = sums["cross"] - torch.outer(mean, sums["counts"])
    smallest = ROUNDING * sums["gram"].diagonal().sum() + torch.finfo(gram.dtype).tiny
    if strength is not None:
        gram.diagonal().add_(strength * gram.diagonal().mean().clamp(min=smallest))
        with LINALG:
            weights = torch.cholesky_solve(cross, torch.linalg.cholesky(gram)).T
        return weights, sums["counts"] / n - weights @ mean
    with LINALG:
        values, vectors = torch.linalg.eigh(gram)
    values = values.clamp(min=0)
    turned = vectors.T @ cross
    unit = values.mean().clamp(min=smallest)
    chosen = best_strength(values / unit, turned.square().sum(1) / unit, sums["counts"])
    weights = (vectors @ (turned / (values + chosen * unit)[:, None])).T
    return weights, sums["counts"] / n - weights @ mean


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


def _exact(tensor: Tensor) -> Tensor:
    """In float64; on the CPU where the device has none."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)
