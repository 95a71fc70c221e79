"""The ledger: the owner of every connection, written by methods (allocation, drop and grow, pruning) and read by steps.

It holds the task that owns each connection, the task that fixed each neuron (0: none), and the record of each task's allocation.
Masks are views of these numbers: the weights that task t trains are `owner == t`; the network after task t is
`0 < owner <= t`. Neurons of different groups of a convolution cannot be connected: the owner there is ABSENT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from afaf.network.spec import Edge, NetworkSpec

ABSENT = -1
Unit = Literal["connection", "weight"]
Neurons = dict[int, Tensor]  # group -> sorted indices


@dataclass(frozen=True)
class ClassAllocation:
    """The neurons of one class: its candidates, and the neurons that its new connections may join."""

    class_id: int
    candidates: Neurons = field(default_factory=dict)  # R_l^c, by group
    sources: Neurons = field(default_factory=dict)  # by l of W_l: neurons that its new connections may start from
    targets: Neurons = field(default_factory=dict)  # by l of W_l: neurons that they may lead into


@dataclass(frozen=True)
class Allocation:
    """The record of a task's sub-network: its allocated neurons. Its connections are in the ledger's owners."""

    task: int
    l_reuse: int  # connections were added in W_l for l >= l_reuse; 1 when the task reuses nothing
    free: Neurons  # S_l, by group
    classes: tuple[ClassAllocation, ...]

    @classmethod
    def without_reuse(cls, spec: NetworkSpec, task: int, free: Neurons, class_ids: Sequence[int]) -> Allocation:
        """Let all of the task's neurons connect with each other and with the inputs, and each class with its own output row."""
        joined = {1: torch.arange(spec.layer(1).size), **free, spec.L: torch.tensor(sorted(class_ids))}
        sources = {l: joined[edge.source_group] for l, edge in enumerate(spec.edges, 1)}
        targets = {l: joined[edge.target_group] for l, edge in enumerate(spec.edges, 1)}
        return cls(task, 1, free, tuple(ClassAllocation(c, {}, sources, {**targets, spec.E: torch.tensor([c])}) for c in class_ids))

    def sources(self, l: int) -> Tensor:
        """The neurons that W_l's new connections may start from, over all classes."""
        return _union([c.sources[l] for c in self.classes if l in c.sources])

    def targets(self, l: int) -> Tensor:
        """The neurons that W_l's new connections may lead into, over all classes."""
        return _union([c.targets[l] for c in self.classes if l in c.targets])

    def selected(self, spec: NetworkSpec, group: int) -> Tensor:
        """Every neuron of a group that takes part in the task's sub-network."""
        numbered = list(enumerate(spec.edges, 1))
        sources = [c.sources[l] for c in self.classes for l, edge in numbered if edge.source_group == group and l in c.sources]
        targets = [c.targets[l] for c in self.classes for l, edge in numbered if edge.target_group == group and l in c.targets]
        return _union(sources + targets)


class Ledger:
    """`owner(l)` of W_l is (outputs, inputs, 1) if the unit is a connection, (outputs, inputs, block) if it is a weight.

    `fixed(layer)` is (size,) and shared by the layers of a group.
    """

    def __init__(self, spec: NetworkSpec, unit: Unit = "connection", device: torch.device | str = "cpu"):
        self.unit: Unit = unit
        shapes = [(edge.outputs, edge.inputs, edge.block if unit == "weight" else 1) for edge in spec.edges]
        self.owners = [torch.zeros(shape, dtype=torch.int16, device=device) for shape in shapes]
        for owner, edge in zip(self.owners, spec.edges, strict=True):
            if edge.groups > 1:
                owner[~edge.exists()] = ABSENT
        self.fixed_by = {s: torch.zeros(spec.layer(s).size, dtype=torch.int16, device=device) for s in spec.groups}
        self._group = {number: layer.group for number, layer in enumerate(spec.layers, 1)}
        self.records: list[Allocation] = []
        self.keeps_past = True  # no connection has changed its owner: the network after each earlier task can be restored

    def owner(self, l: int) -> Tensor:
        return self.owners[l - 1]

    def fixed(self, layer: int) -> Tensor:
        """The task that fixed each neuron of a layer."""
        return self.fixed_by[self._group[layer]]

    def owned_by(self, l: int, task: int) -> Tensor:
        return self.owners[l - 1] == task

    def is_fixed(self, layer: int) -> Tensor:
        return self.fixed(layer) > 0

    def free_neurons(self, layer: int) -> Tensor:
        return torch.nonzero(self.fixed(layer) == 0).flatten()

    def record_of(self, task: int) -> Allocation | None:
        return next((record for record in self.records if record.task == task), None)

    def claim(self, l: int, task: int, where: Tensor) -> None:
        """Give the places of W_l marked in `where` to a task; a place that another task owns is an error."""
        taken = where & (self.owners[l - 1] != 0) & (self.owners[l - 1] != task)
        if bool(taken.any()):
            raise ValueError(f"W_{l}: {int(taken.sum())} places of task {task} are owned by other tasks")
        self.owners[l - 1][where] = task

    def reassign(self, l: int, task: int, where: Tensor) -> None:
        """Give places to a task, whoever owned them: for dense methods, which train every weight in every task."""
        had = self.owners[l - 1][where]
        self.keeps_past = self.keeps_past and bool(((had == 0) | (had == task)).all())
        self.owners[l - 1][where] = task

    def release(self, l: int, where: Tensor) -> None:
        self.owners[l - 1][where] = 0

    def fix(self, layer: int, task: int, neurons: Tensor) -> None:
        """Fix neurons for a task, in all layers of the group; those fixed before keep the task that fixed them."""
        fixed = self.fixed(layer)
        fixed[neurons[fixed[neurons] == 0]] = task

    def owned_weights(self, l: int, block: int) -> int:
        return int((self.owners[l - 1] > 0).sum()) * (block if self.unit == "connection" else 1)

    def grow_outputs(self, rows: int) -> None:
        """Append unowned output rows."""
        last = self.owners[-1]
        self.owners[-1] = torch.cat([last, last.new_zeros(rows, *last.shape[1:])])
        classes = max(self._group)
        self.fixed_by[classes] = torch.cat([self.fixed_by[classes], self.fixed_by[classes].new_zeros(rows)])


def _union(parts: list[Tensor]) -> Tensor:
    union: Tensor = torch.unique(torch.cat(parts)) if parts else torch.empty(0, dtype=torch.int64)
    return union


def owners_of_records(edge: Edge, l: int, records: Sequence[Allocation], free: Tensor) -> Tensor | None:
    """The owners of W_l if each task owned all pairs of the neurons in its record; None if two tasks would own the same pair.

    `free` are the owners of W_l before the first task.
    """
    of_tasks = [(record.task, record.targets(l)[:, None], edge.columns(record.sources(l))) for record in records if l >= record.l_reuse]
    if sum(len(targets) * len(sources) for _, targets, sources in of_tasks) > free.shape[0] * free.shape[1]:
        return None  # before any work: a file may hold any records
    owners = free.clone()
    for task, targets, sources in of_tasks:
        before = owners[targets, sources]
        if bool((before > 0).any()):
            return None
        owners[targets, sources] = torch.where(before == ABSENT, before, task)
    return owners


def live_beside(ledger: Ledger, task: int) -> list[Tensor]:
    """For each W_l (outputs, inputs), whether any task owns the connection; if `task` has a sub-network, any other task."""
    own = 0 if ledger.record_of(task) is None else task
    return [((owner > 0) & (owner != own)).any(dim=2) for owner in ledger.owners]


def cone(spec: NetworkSpec, ledger: Ledger, task: int, marked: dict[int, Tensor]) -> dict[int, Tensor]:
    """By group, the neurons that a task computes with: those marked or selected, and all from which they can be reached.

    A task's own connections join selected neurons, before and after rewiring. The rest therefore depends only on the connections of
    other tasks, and stays the same until the task is learned.
    """
    record, found = ledger.record_of(task), {s: mask.clone() for s, mask in marked.items()}
    if record is not None:
        for s in spec.hidden_groups:
            found[s][record.selected(spec, s).to(found[s].device)] = True
    return reached_back(spec, live_beside(ledger, task), found)


def reached_back(spec: NetworkSpec, live: list[Tensor], marked: dict[int, Tensor]) -> dict[int, Tensor]:
    """By group, the marked neurons and all those from which one of them is reached through `live` (outputs, inputs) connections.

    In a residual network a neuron may lead back into its own group, so the search repeats until nothing is added.
    """
    reached = {group: neurons.clone() for group, neurons in marked.items()}
    grows = True
    while grows:
        grows = False
        for l in reversed(spec.edge_numbers):
            edge = spec.edge(l)
            if edge.diagonal:  # the same neurons
                continue
            sources = reached[edge.source_group]
            more = live[l - 1][reached[edge.target_group]].any(dim=0) & ~sources
            if bool(more.any()):
                reached[edge.source_group] = sources | more
                grows = grows or len(spec.groups) < spec.L
    return reached
