"""Candidate neurons: those that already respond to a new class (the paper's Eq. 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from afaf.exact import exact
from afaf.network.net import Network

FLOOR = 1e-6
Rule = Literal["most", "separating", "random", "lowest"]


@torch.no_grad()
def mean_activation(network: Network, batches: Iterable[Tensor]) -> dict[int, Tensor]:
    """A_l^c (Eq. 1): each neuron's mean activation over the images; of a map, its sum over positions before pooling."""
    totals: dict[int, Tensor] = {}
    count = 0

    def add(layer: int, h: Tensor) -> None:
        total = exact(h).sum(dim=[0, *range(2, h.dim())])
        totals[layer] = totals[layer] + total if layer in totals else total

    for x in batches:
        network(x, observe=add)
        count += len(x)
    return {layer: total / count for layer, total in totals.items()}


def neuron_scores(network: Network, images: Mapping[int, Iterable[Tensor]], rule: Rule) -> dict[int, dict[int, Tensor]]:
    """The scores that rank neurons for each class of a task, from batches of its images: mean activation or separation."""
    return separation(network, images) if rule == "separating" else {c: mean_activation(network, own) for c, own in images.items()}


def separation(network: Network, images: Mapping[int, Iterable[Tensor]]) -> dict[int, dict[int, Tensor]]:
    """For each class, the distance between a neuron's mean activations for it and for the others, divided by its deviation within both;
    without other classes, the distance from 0.
    """
    sums = {c: _sums(network, own) for c, own in images.items()}
    scores: dict[int, dict[int, Tensor]] = {c: {} for c in sums}
    for layer in next(iter(sums.values())):
        own = torch.stack([of_class[layer] for of_class in sums.values()])
        (mean, variance), (other_mean, other_variance) = _moments(own), _moments(own.sum(0) - own)
        floor = FLOOR * mean.amax(1, keepdim=True).clamp(min=FLOOR)  # one image of each class has no deviation
        apart = (mean - other_mean).abs() / ((variance + other_variance).sqrt() + floor)
        for c, score in zip(sums, apart, strict=True):
            scores[c][layer] = score
    return scores


@torch.no_grad()
def _sums(network: Network, batches: Iterable[Tensor]) -> dict[int, Tensor]:
    """For each layer (3, neurons): the number of images, and the sums of activations and of their squares; a map's activation is its sum
    over positions.
    """
    sums: dict[int, Tensor] = {}

    def add(layer: int, h: Tensor) -> None:
        values = exact(h).flatten(2).sum(2) if h.dim() > 2 else exact(h)
        more = torch.stack([torch.ones_like(values).sum(0), values.sum(0), values.square().sum(0)])
        sums[layer] = sums[layer] + more if layer in sums else more

    for x in batches:
        network(x, observe=add)
    return sums


def _moments(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances (classes, neurons) from sums (classes, 3, neurons); zeros where there are no images."""
    count, total, squares = sums.unbind(1)
    count = count.clamp(min=1)
    mean = total / count
    return mean, (squares / count - mean.square()).clamp(min=0)


def choose_candidates(score: Tensor, count: int, rule: Rule, generator: torch.Generator, among: Tensor | None = None) -> Tensor:
    """R_l^c (Eq. 2): the `count` neurons of highest score, of all neurons or only of those in `among`; ties go to the lowest index.

    The score is the mean activation, or with `separating` the separation. Ablations: `random` neurons, or those of `lowest` non-zero
    activation. Fewer are returned if `among`, or for `lowest` the active neurons, are fewer.
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
