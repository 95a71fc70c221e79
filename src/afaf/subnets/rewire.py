"""Importance of connections and neurons, and the drop-and-grow cycle that moves a task's connections to its important neurons."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.network.ledger import Ledger
from afaf.network.net import Network
from afaf.network.spec import NetworkSpec
from afaf.subnets.sizes import share


@dataclass
class Importance:
    """Running sums over the steps of the present task.

    `connections[l-1]`, shaped like the owner of W_l: the sum of |change of weight x gradient|, within a connection.
    `neurons[l-1]`: the sum over the steps of the running importance of a neuron's outgoing connections, so early steps weigh more.
    """

    connections: list[Tensor]
    neurons: list[Tensor]

    @classmethod
    def zeros(cls, spec: NetworkSpec, ledger: Ledger, dtype: torch.dtype = torch.float32) -> Importance:
        return cls(
            [torch.zeros(owner.shape, dtype=dtype, device=owner.device) for owner in ledger.owners],
            [torch.zeros(layer.size, dtype=dtype, device=ledger.owners[0].device) for layer in spec.layers],
        )

    def add(self, l: int, change: Tensor) -> None:
        """Count one step of W_l, where `change` is |change of weight x gradient| for every weight."""
        connections = self.connections[l - 1]
        connections += change if connections.shape[2] == change.shape[2] else change.sum(2, keepdim=True)
        self.neurons[l - 1] += connections.sum(dim=(0, 2))


def drop_and_grow(
    network: Network, ledger: Ledger, importance: Importance, task: int, *, drop_percent: float, reset_importance: bool
) -> None:
    """One cycle in every W_l but the output's that belongs to the task's sub-network."""
    record = ledger.record_of(task)
    assert record is not None, f"task {task} has no sub-network"
    for l in range(record.l_reuse, network.spec.L - 1):
        sources, targets = record.sources(l).to(network.device), record.targets(l).to(network.device)
        targets = targets[~ledger.is_fixed(l + 1)[targets]]
        dropped = least_important(ledger.owned_by(l, task), importance.connections[l - 1], drop_percent)
        ledger.owners[l - 1].view(-1)[dropped] = 0
        grown = most_promising(ledger.owner(l), sources, targets, importance.neurons[l - 1], importance.neurons[l], len(dropped))
        ledger.owners[l - 1].view(-1)[grown] = task
        if reset_importance:
            importance.connections[l - 1].view(-1)[dropped] = 0
        network.parameters.weights[l - 1] = torch.where(ledger.owner(l) > 0, network.weight(l), torch.zeros_like(network.weight(l)))


def least_important(owned: Tensor, importance: Tensor, drop_percent: float) -> Tensor:
    """Flat places of the least important share (rounded down) of the task's connections; ties go to the lowest index."""
    places = torch.nonzero(owned.view(-1)).flatten()
    count = share(drop_percent, len(places))
    order = torch.sort(importance.view(-1)[places], stable=True).indices
    return places[order[:count]]


def most_promising(
    owner: Tensor, sources: Tensor, targets: Tensor, source_importance: Tensor, target_importance: Tensor, count: int
) -> Tensor:
    """Flat places of the `count` missing connections that join the most important neurons (product of the two); ties: lowest index."""
    unit = owner.shape[2]
    score = target_importance[targets][:, None] * source_importance[sources][None, :]
    missing = owner[targets][:, sources] == 0
    flat = (targets[:, None, None] * owner.shape[1] + sources[None, :, None]) * unit + torch.arange(unit, device=owner.device)
    places, scores = flat[missing], score[:, :, None].expand(-1, -1, unit)[missing]
    order = torch.sort(scores, descending=True, stable=True).indices
    return places[order[:count]]
