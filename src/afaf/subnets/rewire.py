"""Importance of connections and neurons, and the drop-and-grow cycle that moves a task's connections to its important neurons."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.network.ledger import Allocation, Ledger
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
    """One cycle in every W_l but the output's that belongs to the task's sub-network.

    All of a task's connections lie between its sources and its targets, so each W_l is looked at there alone.
    """
    record = ledger.record_of(task)
    assert record is not None, f"task {task} has no sub-network"
    fields = [Field.of(ledger, importance, l, record) for l in range(record.l_reuse, network.spec.L - 1)]
    counts = torch.stack([(field.owner == task).sum() for field in fields]).tolist()  # at once: each look at the device waits for it
    for field, count in zip(fields, counts, strict=True):
        dropped = least_important(field, task, share(drop_percent, count))
        field.owner.view(-1)[dropped] = 0
        grown = most_promising(field, len(dropped))
        field.owner.view(-1)[grown] = task
        ledger.owners[field.l - 1][field.rows, field.columns] = field.owner
        places = field.places(dropped)
        if reset_importance:
            importance.connections[field.l - 1].view(-1)[places] = 0
        weights = network.weight(field.l).view(ledger.owner(field.l).numel(), -1)
        regrown = field.owner.view(-1)[dropped] == task
        weights[places] = torch.where(regrown[:, None], weights[places], torch.zeros_like(weights[places]))


@dataclass
class Field:
    """Where connections of a task may be in W_l: between its sources and its targets, in the order of their numbers."""

    l: int
    rows: Tensor  # (targets, 1)
    columns: Tensor  # (1, sources)
    inputs: int  # of W_l
    owner: Tensor  # (targets, sources, unit), a copy
    importance: Tensor  # of the connections, likewise
    score: Tensor  # (targets, sources): the product of the two neurons' importances; -1 where nothing may grow

    @classmethod
    def of(cls, ledger: Ledger, importance: Importance, l: int, record: Allocation) -> Field:
        device = ledger.owner(l).device
        rows, columns = record.targets(l).to(device)[:, None], record.sources(l).to(device)[None, :]
        score = importance.neurons[l][rows] * importance.neurons[l - 1][columns]
        score = torch.where(ledger.is_fixed(l + 1)[rows], -1.0, score)
        owner, connections = ledger.owner(l)[rows, columns], importance.connections[l - 1][rows, columns]
        return cls(l, rows, columns, ledger.owner(l).shape[1], owner, connections, score)

    def places(self, here: Tensor) -> Tensor:
        """Flat places in the whole of W_l, for flat places in this field."""
        unit, sources = self.owner.shape[2], self.columns.shape[1]
        connection = here // unit
        return (self.rows[connection // sources, 0] * self.inputs + self.columns[0, connection % sources]) * unit + here % unit


def least_important(field: Field, task: int, count: int) -> Tensor:
    """The `count` least important of the task's connections, as flat places of the field; ties go to the lowest index."""
    importance = torch.where(field.owner == task, field.importance, torch.inf)
    return torch.sort(importance.view(-1), stable=True).indices[:count]


def most_promising(field: Field, count: int) -> Tensor:
    """The `count` missing connections that join the most important neurons (product of the two); ties: lowest index."""
    score = torch.where(field.owner == 0, field.score[:, :, None], -1.0)
    return torch.sort(score.view(-1), descending=True, stable=True).indices[:count]
