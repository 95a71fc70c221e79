"""The ledger: who owns what. The one shared fact that allocation writes, training reads, a file stores and a picture shows.

For every connection the task that owns it and for every neuron the task that fixed it (0: nobody), and for every task the record
of its allocation. Masks are views of these numbers: what task t may move is `owner == t`; the network as it stood after task t is
`0 < owner <= t`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from afaf.network.spec import NetworkSpec

Unit = Literal["connection", "weight"]
Neurons = dict[int, Tensor]  # neuron layer l -> sorted indices


@dataclass(frozen=True)
class ClassAllocation:
    """What was drawn upon for one class: candidates per neuron layer, and the neurons its new connections may join."""

    class_id: int
    candidates: Neurons = field(default_factory=dict)  # R_l^c
    sources: Neurons = field(default_factory=dict)  # by l of W_l: neurons of layer l
    targets: Neurons = field(default_factory=dict)  # by l of W_l: neurons of layer l+1


@dataclass(frozen=True)
class Allocation:
    """The sub-network given to a task: the record, and the connections drawn for it."""

    task: int
    l_reuse: int  # connections were added in W_l for l >= l_reuse; 1 when the task reuses nothing
    free: Neurons  # S_l
    classes: tuple[ClassAllocation, ...]

    def sources(self, l: int) -> Tensor:
        """Union over the classes of the neurons of layer l that W_l may start from."""
        return _union([c.sources[l] for c in self.classes if l in c.sources])

    def targets(self, l: int) -> Tensor:
        """Union over the classes of the neurons of layer l+1 that W_l may lead into."""
        return _union([c.targets[l] for c in self.classes if l in c.targets])

    def selected(self, l: int) -> Tensor:
        """Every neuron of layer l that takes part in the task's sub-network."""
        return _union(
            [c.sources[l] for c in self.classes if l in c.sources] + [c.targets[l - 1] for c in self.classes if l - 1 in c.targets]
        )


class Ledger:
    """`owner(l)` is (outputs, inputs, 1) for connections as unit, (outputs, inputs, block) for single weights; `fixed(l)` is (size,)."""

    def __init__(self, spec: NetworkSpec, unit: Unit = "connection", device: torch.device | str = "cpu"):
        self.unit: Unit = unit
        self.owners = [torch.zeros(_owner_shape(join.shape, unit), dtype=torch.int16, device=device) for join in spec.joins]
        self.fixings = [torch.zeros(layer.size, dtype=torch.int16, device=device) for layer in spec.layers]
        self.records: list[Allocation] = []
        self.keeps_past = True  # no place has changed hands: the network as it stood after each task can still be seen

    def owner(self, l: int) -> Tensor:
        return self.owners[l - 1]

    def fixed(self, l: int) -> Tensor:
        return self.fixings[l - 1]

    def owned_by(self, l: int, task: int) -> Tensor:
        return self.owners[l - 1] == task

    def is_fixed(self, l: int) -> Tensor:
        return self.fixings[l - 1] > 0

    def free_neurons(self, l: int) -> Tensor:
        return torch.nonzero(self.fixings[l - 1] == 0).flatten()

    def record_of(self, task: int) -> Allocation | None:
        return next((record for record in self.records if record.task == task), None)

    def claim(self, l: int, task: int, where: Tensor) -> None:
        """Give the places of W_l marked in `where` to a task; a place that another task owns is never given away."""
        taken = where & (self.owners[l - 1] != 0) & (self.owners[l - 1] != task)
        if bool(taken.any()):
            raise ValueError(f"W_{l}: {int(taken.sum())} places of task {task} are owned by other tasks")
        self.owners[l - 1][where] = task

    def hand_on(self, l: int, task: int, where: Tensor) -> None:
        """Give places to a task whoever had them: what dense methods do, in which every task moves every weight."""
        had = self.owners[l - 1][where]
        self.keeps_past = self.keeps_past and bool(((had == 0) | (had == task)).all())
        self.owners[l - 1][where] = task

    def release(self, l: int, where: Tensor) -> None:
        self.owners[l - 1][where] = 0

    def fix(self, l: int, task: int, neurons: Tensor) -> None:
        """Fix neurons of layer l for a task; those fixed before keep the task that fixed them."""
        fresh = neurons[self.fixings[l - 1][neurons] == 0]
        self.fixings[l - 1][fresh] = task

    def owned_weights(self, l: int, block: int) -> int:
        return int((self.owners[l - 1] > 0).sum()) * (block if self.unit == "connection" else 1)

    def grow_outputs(self, rows: int) -> None:
        """Append unowned output rows."""
        last = self.owners[-1]
        self.owners[-1] = torch.cat([last, last.new_zeros(rows, *last.shape[1:])])
        self.fixings[-1] = torch.cat([self.fixings[-1], self.fixings[-1].new_zeros(rows)])

    def to(self, device: torch.device | str) -> Ledger:
        self.owners = [owner.to(device) for owner in self.owners]
        self.fixings = [fixing.to(device) for fixing in self.fixings]
        return self


def _owner_shape(shape: tuple[int, int, int], unit: Unit) -> tuple[int, int, int]:
    outputs, inputs, block = shape
    return (outputs, inputs, block if unit == "weight" else 1)


def _union(parts: list[Tensor]) -> Tensor:
    union: Tensor = torch.unique(torch.cat(parts)) if parts else torch.empty(0, dtype=torch.int64)
    return union
