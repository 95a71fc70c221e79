"""Pruning by magnitude."""

from __future__ import annotations

import torch
from torch import Tensor


def largest(weight: Tensor, among: Tensor, count: int) -> Tensor:
    """A mask of the `count` weights of largest magnitude among some; ties go to the lowest index."""
    places = torch.nonzero(among.view(-1)).flatten()
    order = torch.sort(weight.view(-1)[places].abs(), descending=True, stable=True).indices
    mask = torch.zeros_like(among)
    mask.view(-1)[places[order[:count]]] = True
    return mask
