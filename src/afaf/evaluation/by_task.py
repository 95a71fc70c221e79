"""Answers computed task by task: each task's outputs with the part of the network that they depend on.

Isolated sub-networks share nothing, so that all of them together are far less work than the whole network, whose other connections are 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from afaf.methods.base import Method, Predictor
from afaf.network.forward import forward
from afaf.network.subnetwork import multiplications, neurons_that_answer, part_of
from afaf.training.learner import Learner

WORTH = 0.5  # of the whole network's multiplications: with more, one pass through the whole network is simpler


def predictor_of(method: Method[Any], learner: Learner) -> Predictor:
    """The method's function from images to logits; the network's own is computed task by task where that is less work."""
    predict = method.predictor(learner)
    return predictor_by_task(learner) if predict is learner.network else predict


@torch.no_grad()
def predictor_by_task(learner: Learner) -> Predictor:
    """The network's function from images to logits, computed task by task where that is less work; up to rounding the same."""
    network, spec = learner.network, learner.network.spec
    rows = [torch.tensor(rows, device=network.device) for rows in learner.classes_of.values()]
    parts = [part_of(spec, network.parameters, neurons_that_answer(spec, network.parameters, of_task)) for of_task in rows]
    if sum(multiplications(spec, part) for part in parts) > WORTH * multiplications(spec, network.parameters):
        return network
    biases = network.parameters.biases[-1].detach().clone()

    def answer(x: Tensor) -> Tensor:
        logits = biases.repeat(x.shape[0], 1)  # len would make a constant of the batch when it is exported
        for of_task, part in zip(rows, parts, strict=True):
            logits[:, of_task] = forward(spec, part, x)
        return logits

    return answer
