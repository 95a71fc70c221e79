"""After a task: its most important neurons become fixed, and its connections are its own for ever."""

from __future__ import annotations

import torch
from torch import Tensor

from afaf.network.ledger import Ledger
from afaf.network.spec import NetworkSpec
from afaf.subnets.rewire import Importance
from afaf.subnets.sizes import Sizes


def consolidate(spec: NetworkSpec, ledger: Ledger, importance: Importance, task: int, sizes: Sizes, *, orthogonal_output: bool) -> None:
    """Fix, of the neurons selected in each layer, the fixed_l most important (already fixed ones count towards the number).

    With `orthogonal_output` all of the task's neurons in the last hidden layer are fixed: no later task's output shares them.
    """
    record = ledger.record_of(task)
    assert record is not None, f"task {task} has no sub-network"
    for l in range(2, spec.L):
        selected = record.selected(l).to(ledger.fixed(l).device)
        keep_all = orthogonal_output and l == spec.L - 1
        count = len(selected) if keep_all else sizes.fixed[l]
        ledger.fix(l, task, most_important(importance.neurons[l - 1], selected, count))


def most_important(importance: Tensor, selected: Tensor, count: int) -> Tensor:
    """Of the selected neurons the `count` most important; ties go to the lowest index."""
    order = torch.sort(importance[selected], descending=True, stable=True).indices
    return selected[order[:count]]
