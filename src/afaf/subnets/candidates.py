"""Candidate neurons: those that already respond to a new class (the paper's Eq. 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from afaf.network.net import Network

Rule = Literal["most", "random", "lowest"]


@torch.no_grad()
def mean_activation(network: Network, batches: Iterable[Tensor]) -> dict[int, Tensor]:
    """A_l^c (Eq. 1): each neuron's mean activation over the images; of a map, its sum over positions before pooling."""
    totals: dict[int, Tensor] = {}
    count = 0

    def add(layer: int, h: Tensor) -> None:
        total = h.double().sum(dim=[0, *range(2, h.dim())])
        totals[layer] = totals[layer] + total if layer in totals else total

    for x in batches:
        network(x, observe=add)
        count += len(x)
    return {layer: total / count for layer, total in totals.items()}


def choose_candidates(activation: Tensor, count: int, rule: Rule, generator: torch.Generator) -> Tensor:
    """R_l^c (Eq. 2): the `count` neurons of highest activation, fixed or free; ties go to the lowest index.

    Ablations: `random` neurons, or those of `lowest` non-zero activation (fewer where fewer are active at all).
    """
    if rule == "random":
        chosen = torch.randperm(len(activation), generator=generator)[:count].to(activation.device)
    elif rule == "most":
        chosen = torch.sort(activation, descending=True, stable=True).indices[:count]
    else:
        active = torch.nonzero(activation > 0).flatten()
        chosen = active[torch.sort(activation[active], stable=True).indices[:count]]
    return torch.sort(chosen).values
