"""Candidate neurons: those that already respond to a new class (the paper's Eq. 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable
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


def neuron_scores(network: Network, own: Iterable[Tensor], others: Iterable[Tensor], rule: Rule) -> dict[int, Tensor]:
    """What neurons are ranked by for a class: mean activation over its `own` images, or how well they tell these from the `others`."""
    return separation(network, own, others) if rule == "separating" else mean_activation(network, own)


def separation(network: Network, own: Iterable[Tensor], others: Iterable[Tensor]) -> dict[int, Tensor]:
    """The distance of each neuron's mean activations for `own` and `others`, over its deviation within both; without others, from 0."""
    (mean, variance), (other_mean, other_variance) = _moments(network, own), _moments(network, others)
    apart = {layer: (mean[layer] - other_mean.get(layer, 0)).abs() for layer in mean}
    within = {layer: (variance[layer] + other_variance.get(layer, 0)).sqrt() for layer in mean}
    floor = {layer: FLOOR * mean[layer].max().clamp(min=FLOOR) for layer in mean}  # one image of each class has no deviation
    return {layer: apart[layer] / (within[layer] + floor[layer]) for layer in mean}


@torch.no_grad()
def _moments(network: Network, batches: Iterable[Tensor]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Mean and variance over images of each neuron's activation; of a map, its sum over positions."""
    seen: dict[int, list[Tensor]] = {}

    def add(layer: int, h: Tensor) -> None:
        seen.setdefault(layer, []).append(h.double().flatten(2).sum(2) if h.dim() > 2 else h.double())

    for x in batches:
        network(x, observe=add)
    values = {layer: torch.cat(parts) for layer, parts in seen.items()}
    return {layer: v.mean(0) for layer, v in values.items()}, {layer: v.var(0, correction=0) for layer, v in values.items()}


def choose_candidates(score: Tensor, count: int, rule: Rule, generator: torch.Generator, among: Tensor | None = None) -> Tensor:
    """R_l^c (Eq. 2): the `count` neurons of highest score, fixed or free, or `among` some of them; ties go to the lowest index.

    The score is the mean activation, or with `separating` the separation. Ablations: `random` neurons, or those of `lowest` non-zero
    activation (fewer where fewer are active at all).
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
