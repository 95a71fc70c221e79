"""Candidate neurons: those that already respond to a new class (the paper's Eq. 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from afaf.network.net import Network

FLOOR = 1e-6
Rule = Literal["most", "separating", "random", "lowest"]


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


def neuron_scores(network: Network, images: Mapping[int, Iterable[Tensor]], rule: Rule) -> dict[int, dict[int, Tensor]]:
    """What neurons are ranked by for each class of a task, from batches of its images: mean activation, or separation."""
    return separation(network, images) if rule == "separating" else {c: mean_activation(network, own) for c, own in images.items()}


def separation(network: Network, images: Mapping[int, Iterable[Tensor]]) -> dict[int, dict[int, Tensor]]:
    """For each class, the distance of a neuron's mean activations for it and for the others, over its deviation within both; without
    others, the distance from 0.
    """
    sums = {c: _sums(network, own) for c, own in images.items()}

    def apart(c: int, layer: int) -> Tensor:
        own = sums[c][layer]
        others = sum((sums[other][layer] for other in sums if other != c), torch.zeros_like(own))
        (mean, variance), (other_mean, other_variance) = _moments(own), _moments(others)
        floor = FLOOR * mean.max().clamp(min=FLOOR)  # one image of each class has no deviation
        return (mean - other_mean).abs() / ((variance + other_variance).sqrt() + floor)

    return {c: {layer: apart(c, layer) for layer in sums[c]} for c in sums}


@torch.no_grad()
def _sums(network: Network, batches: Iterable[Tensor]) -> dict[int, Tensor]:
    """Of each layer, over images: their number, the sum of each neuron's activations and that of their squares; of a map, its sum over
    positions counts.
    """
    sums: dict[int, Tensor] = {}

    def add(layer: int, h: Tensor) -> None:
        values = h.double().flatten(2).sum(2) if h.dim() > 2 else h.double()
        more = torch.stack([torch.ones_like(values).sum(0), values.sum(0), values.square().sum(0)])
        sums[layer] = sums[layer] + more if layer in sums else more

    for x in batches:
        network(x, observe=add)
    return sums


def _moments(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance; zeros where there are no images."""
    count = sums[0].clamp(min=1)
    mean = sums[1] / count
    return mean, (sums[2] / count - mean.square()).clamp(min=0)


def choose_candidates(score: Tensor, count: int, rule: Rule, generator: torch.Generator, among: Tensor | None = None) -> Tensor:
    """R_l^c (Eq. 2): the `count` neurons of highest score, fixed or free, or `among` some of them; ties go to the lowest index.

    The score is the mean activation, or with `separating` the separation. Ablations: `random` neurons, or those of `lowest` non-zero
    activation. They are fewer where fewer are in `among`, or active at all.
    """
    neurons = torch.arange(len(score), device=score.device) if among is None else among.to(score.device)
    if rule == "random":
        chosen = neurons[torch.randperm(len(neurons), generator=generator)[:count].to(score.device)]
    elif rule == "lowest":
        active = neurons[score[neurons] > 0]
        chosen = active[torch.sort(score[active], stable=True).indices[:count]]
    else:
        chosen = neurons[torch.sort(score[neurons], descending=True, stable=True).indices[:count]]
    return torch.sort(chosen).values
