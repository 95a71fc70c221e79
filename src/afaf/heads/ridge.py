"""Ridge regression onto one-hot labels, its strength by generalised cross-validation (see closed_form.py) or fixed."""

from __future__ import annotations

import torch

from afaf.heads import closed_form
from afaf.heads.sums import Linear, Sums, without_images


def solve(sums: Sums, *, strength: float | None = None, balance: bool = True) -> Linear:
    """The head of least squared error over all images.

    With `balance`, the intercept is that of classes equally many: rare classes are not answered less often for being rare.
    """
    named = {"gram": sums.gram, "cross": sums.totals.T, "total": sums.totals.sum(0), "counts": sums.counts}
    weights, bias = closed_form.solve(named, strength)
    if balance:
        present = sums.counts > 0
        centre = sums.means[present].mean(0)
        bias = torch.ones_like(bias) / present.sum() - weights @ centre
    return Linear(weights, bias + without_images(sums))
