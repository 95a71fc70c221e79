"""Importance of connections and neurons, and the drop-and-grow cycle that moves a task's connections to its important neurons."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.network.ledger import ABSENT, Allocation, Ledger
from afaf.network.net import Network
from afaf.network.spec import Edge, NetworkSpec
from afaf.subnets.sizes import share


@dataclass
class Importance:
    """Running sums over the steps of the present task.

    `connections[l-1]`, shaped like the owner of W_l: the sum of |change of weight x gradient| over the connection's block.
    `neurons`, by group: the sum over the steps of the running importance of a neuron's outgoing connections, so early steps weigh more.
    """

    connections: list[Tensor]
    neurons: dict[int, Tensor]

    @classmethod
    def zeros(cls, spec: NetworkSpec, ledger: Ledger, dtype: torch.dtype = torch.float32) -> Importance:
        return cls(
            [torch.zeros(owner.shape, dtype=dtype, device=owner.device) for owner in ledger.owners],
            {s: torch.zeros(spec.layer(s).size, dtype=dtype, device=ledger.owners[0].device) for s in spec.groups},
        )

    def add(self, l: int, edge: Edge, change: Tensor) -> None:
        """Count one step of W_l, which is `edge`; `change` is |change of weight x gradient| for every weight."""
        connections = self.connections[l - 1]
        connections += change if connections.shape[2] == change.shape[2] else change.sum(2, keepdim=True)
        self.neurons[edge.source_group] += connections.sum(dim=(1, 2) if edge.diagonal else (0, 2))


class DropAndGrow:
    """The cycle for one task, in every W_l of its sub-network but the output's.

    All of a task's connections lie between its sources and its targets, and their number never changes: both are computed once.
    """

    def __init__(self, spec: NetworkSpec, ledger: Ledger, task: int, *, drop_percent: float, reset_importance: bool):
        self.task, self.reset_importance = task, reset_importance
        record = ledger.record_of(task)
        assert record is not None, f"task {task} has no sub-network"
        fields = [Field.of(spec.edge(l), ledger, l, record) for l in range(record.l_reuse, spec.E)]
        owned = torch.stack([(ledger.owners[f.l - 1] == task).sum() for f in fields]).tolist() if fields else []
        counts = [share(drop_percent, count) for count in owned]
        # In a full field every dropped connection would grow back.
        active = [i for i, count in enumerate(counts) if count and owned[i] < fields[i].pairs]
        self.fields, self.dropped = [fields[i] for i in active], [counts[i] for i in active]

    def __call__(self, network: Network, ledger: Ledger, importance: Importance) -> None:
        for field, count in zip(self.fields, self.dropped, strict=True):
            l = field.l
            owner = ledger.owner(l)[field.rows, field.columns]
            dropped = least_important(owner, importance.connections[l - 1][field.rows, field.columns], self.task, count)
            owner.view(-1).index_fill_(0, dropped, 0)
            grown = most_promising(owner, field.score(importance), count)
            owner.view(-1).index_fill_(0, grown, self.task)
            ledger.owners[l - 1][field.rows, field.columns] = owner
            places = field.places(dropped)
            if self.reset_importance:
                importance.connections[l - 1].view(-1).index_fill_(0, places, 0)
            weights = network.weight(l).view(ledger.owner(l).numel(), -1)
            regrown = owner.view(-1)[dropped] == self.task  # keeps its weight
            weights[places] = torch.where(regrown[:, None], weights[places], 0.0)  # not a product, which could give -0 instead of 0


@dataclass
class Field:
    """The part of W_l between a task's sources and targets, in the order of their indices; it holds all of the task's connections."""

    l: int
    edge: Edge
    rows: Tensor  # (targets, 1)
    columns: Tensor  # (1, sources)
    open: Tensor  # (targets, 1): whether connections may grow into a target, i.e. it is not fixed
    flat: Tensor  # (targets x sources x unit,): places in the whole of W_l
    pairs: int  # how many of these places exist

    @classmethod
    def of(cls, edge: Edge, ledger: Ledger, l: int, record: Allocation) -> Field:
        owner = ledger.owner(l)
        rows, columns = record.targets(l).to(owner.device)[:, None], edge.columns(record.sources(l).to(owner.device))[None, :]
        units = torch.arange(owner.shape[2], device=owner.device)
        flat = ((rows * owner.shape[1] + columns)[:, :, None] * len(units) + units).view(-1)
        pairs = len(flat) if edge.groups == 1 else int((owner[rows, columns] != ABSENT).sum())
        return cls(l, edge, rows, columns, ~ledger.is_fixed(edge.target)[rows], flat, pairs)

    def score(self, importance: Importance) -> Tensor:
        """(targets, sources): the product of the two neurons' importances; -1 where nothing may grow."""
        above, below = importance.neurons[self.edge.target_group], importance.neurons[self.edge.source_group]
        product = above[self.rows] * below[self.rows if self.edge.diagonal else self.columns]
        return torch.where(self.open, product, -1.0)

    def places(self, here: Tensor) -> Tensor:
        """Flat places in the whole of W_l, for flat places in this field."""
        return self.flat[here]


def least_important(owner: Tensor, importance: Tensor, task: int, count: int) -> Tensor:
    """The `count` least important of the task's connections in a field, as flat places of it; ties go to the lowest index."""
    return torch.sort(torch.where(owner == task, importance, torch.inf).view(-1), stable=True).indices[:count]


def most_promising(owner: Tensor, score: Tensor, count: int) -> Tensor:
    """The `count` missing connections of highest score in a field, as flat places of it; ties: lowest index."""
    missing = torch.where(owner == 0, score[:, :, None], -1.0)
    return torch.sort(missing.view(-1), descending=True, stable=True).indices[:count]
