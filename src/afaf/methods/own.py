"""A task's own neurons, norms and biases: those that its plan trains."""

from __future__ import annotations

import torch
from torch import Tensor

from afaf.network.ledger import Allocation, Ledger, cone
from afaf.network.spec import NetworkSpec


def own_neurons(spec: NetworkSpec, record: Allocation, layer: int, unfixed: dict[int, Tensor]) -> Tensor:
    """1 for the neurons of a layer that the task has selected and that are not fixed."""
    selected = torch.zeros_like(unfixed[layer])
    selected[record.selected(spec, spec.layer(layer).group).to(selected.device)] = 1
    return selected * unfixed[layer]


def own_norms(spec: NetworkSpec, record: Allocation, unfixed: dict[int, Tensor]) -> dict[int, Tensor]:
    """Under strict isolation norms belong to neurons: the task's own move, in layers that its new connections can reach."""
    first = spec.edge(record.l_reuse).target
    return {layer: own_neurons(spec, record, layer, unfixed) for layer in spec.normed_layers if layer >= first}


def own_biases(spec: NetworkSpec, record: Allocation, unfixed: dict[int, Tensor], norms: dict[int, Tensor]) -> dict[int, Tensor]:
    """Those of the task's own neurons, from l_reuse on, except directly before a norm that trains, which subtracts them."""
    targets = {l: spec.edge(l).target for l in range(record.l_reuse, spec.E)}
    before_norm = {layer for layer in norms if spec.layer(layer).ops[0].has_norm}
    return {l: own_neurons(spec, record, target, unfixed) for l, target in targets.items() if target not in before_norm}


def used_norms(spec: NetworkSpec, ledger: Ledger, record: Allocation) -> dict[int, Tensor]:
    """1 for the neurons that the task computes with, in the normed layers that its new connections can reach."""
    nobody = {s: torch.zeros_like(fixed, dtype=torch.bool) for s, fixed in ledger.fixed_by.items()}
    used, first = cone(spec, ledger, record.task, nobody), spec.edge(record.l_reuse).target
    return {layer: used[spec.layer(layer).group] for layer in spec.normed_layers if layer >= first}
