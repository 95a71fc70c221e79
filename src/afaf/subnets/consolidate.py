"""Consolidation after a task: its most important neurons are fixed; PackNet keeps its largest weights."""

from __future__ import annotations

import torch
from torch import Tensor

from afaf.network.ledger import Ledger
from afaf.network.spec import NetworkSpec
from afaf.subnets.rewire import Importance
from afaf.subnets.sizes import Sizes


def consolidate(
    spec: NetworkSpec, ledger: Ledger, importance: Importance, task: int, sizes: Sizes, *, orthogonal_output: bool, strict: bool = False
) -> None:
    """Fix the fixed_l most important of the selected neurons in each group (neurons already fixed count towards fixed_l).

    With `orthogonal_output` all of the task's neurons in the last hidden layer are fixed: no later task's output shares them.
    `strict` isolation fixes all of the task's neurons, so that its logits never change.
    """
    record = ledger.record_of(task)
    assert record is not None, f"task {task} has no sub-network"
    for s in spec.hidden_groups:
        selected = record.selected(spec, s).to(ledger.fixed(s).device)
        keep_all = strict or (orthogonal_output and s == spec.last_hidden)
        count = len(selected) if keep_all else sizes.fixed[s]
        ledger.fix(s, task, most_important(importance.neurons[s], selected, count))


def most_important(importance: Tensor, selected: Tensor, count: int) -> Tensor:
    """The `count` most important of the selected neurons; ties go to the lowest index."""
    order = torch.sort(importance[selected], descending=True, stable=True).indices
    return selected[order[:count]]


def largest(weight: Tensor, among: Tensor, count: int) -> Tensor:
    """A mask of the `count` weights of largest magnitude among some; ties go to the lowest index."""
    places = torch.nonzero(among.view(-1)).flatten()
    order = torch.sort(weight.view(-1)[places].abs(), descending=True, stable=True).indices
    mask = torch.zeros_like(among)
    mask.view(-1)[places[order[:count]]] = True
    return mask
