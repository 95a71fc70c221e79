"""Features from the network itself: how strongly the first task's neurons respond to an image, on average over its positions.

Under strict isolation these neurons never change, so that sums over the features of all tasks' images stay valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.network.forward import forward
from afaf.network.spec import NetworkSpec
from afaf.network.subnetwork import part_of
from afaf.training.learner import Learner


def layers_read(spec: NetworkSpec) -> list[int]:
    """The layers that give features: those where edges meet, or every hidden layer of a network without such."""
    hidden = range(2, spec.L)
    return [l for l in hidden if spec.layer(l).edge is None] or list(hidden)


def activation_count(spec: NetworkSpec, neurons: Mapping[int, int]) -> int:
    """How many features so many neurons of each group give."""
    return sum(neurons[spec.layer(l).group] for l in layers_read(spec))


def activation_flops(spec: NetworkSpec, neurons: Mapping[int, int]) -> int:
    """Of the pass through so many neurons of each group that gives the features of an image."""
    below = spec.edges[:-1]
    return sum(2 * edge.pairs(neurons[edge.source_group], neurons[edge.target_group]) * edge.block * edge.positions for edge in below)


def first_task_activations(learner: Learner) -> Callable[[Tensor], Tensor]:
    """A function from images to features (n, d): the square roots of mean activations, scaled to length 1 layer by layer and together."""
    spec, device = learner.network.spec, learner.network.device
    kept = {s: torch.nonzero(learner.ledger.fixed(s) == 1).flatten() for s in spec.hidden_groups}
    kept |= {1: torch.arange(spec.layer(1).size, device=device), spec.L: torch.tensor(learner.classes_of[1], device=device)}
    part, layers = part_of(spec, learner.network.parameters, kept), layers_read(spec)

    def features(x: Tensor) -> Tensor:
        seen: dict[int, Tensor] = {}
        forward(spec, part, x, observe=seen.__setitem__, stop=spec.L - 1)
        means = [seen[l].flatten(2).mean(2) if seen[l].dim() > 2 else seen[l] for l in layers]
        return F.normalize(torch.cat([F.normalize(mean.clamp(min=0).sqrt()) for mean in means], 1))

    return features
