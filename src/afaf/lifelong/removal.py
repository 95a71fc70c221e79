"""Taking classes and tasks out of a learner, without images; the answers for all other classes stay."""

from __future__ import annotations

import torch

from afaf.network.ledger import reached_back
from afaf.training.learner import Learner


def remove_outputs(learner: Learner, class_id: int) -> None:
    """Delete the weights into a class's output rows, and give their biases initial values."""
    last, k = learner.network.spec.E, learner.outputs_per_class
    rows = slice(k * class_id, k * (class_id + 1))
    outputs = torch.zeros_like(learner.ledger.owner(last), dtype=torch.bool)
    outputs[rows] = True
    learner.release(last, outputs)
    learner.network.parameters.biases[-1][rows] = learner.network.initial_bias(last)[rows]


def free_neurons_of(learner: Learner, task: int) -> None:
    """Free a task's neurons, and its connections into neurons, from which no output of another task is reached."""
    spec, ledger = learner.network.spec, learner.ledger
    others = [row for number, rows in learner.classes_of.items() if number != task for row in rows]
    outputs = {s: torch.zeros(spec.layer(s).size, dtype=torch.bool, device=learner.network.device) for s in spec.groups}
    outputs[spec.L][others] = True
    reached = reached_back(spec, [(owner > 0).any(2) for owner in ledger.owners], outputs)
    for l, edge in enumerate(spec.edges, 1):
        learner.release(l, (ledger.owner(l) == task) & ~reached[edge.target_group][:, None, None])
    for s in spec.hidden_groups:
        free = (ledger.fixed(s) == task) & ~reached[s]
        ledger.fixed(s)[free] = 0
        learner.network.reset_neurons(s, free)
