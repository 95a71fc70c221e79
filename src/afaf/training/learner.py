"""The state that changes while a stream is learned: checkpoints store it, and methods work on it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch
from torch import Tensor

from afaf.network.ledger import Ledger, Unit
from afaf.network.net import Network
from afaf.subnets.rewire import Importance


@dataclass
class Learner:
    """A network, its ledger, the running importances of the present task, and what a method keeps between tasks."""

    network: Network
    ledger: Ledger
    importance: Importance
    memory: dict[str, Tensor] = field(default_factory=dict)  # Fisher, teacher, Gram ...; "weights/..." and "biases/..." are the model's
    classes_of: dict[int, tuple[int, ...]] = field(default_factory=dict)  # task number -> its output rows, of the tasks begun
    tasks_learned: int = 0
    optimiser_state: dict[str, Tensor] = field(default_factory=dict)  # BUFFER/PARAMETER, of the phase that is being learned
    outputs_per_class: int = 1  # class c has the output rows from `c x outputs_per_class` on; more than one with rotation self-labels

    @classmethod
    def fresh(cls, network: Network, unit: Unit = "connection", outputs_per_class: int = 1) -> Learner:
        ledger = Ledger(network.spec, unit, network.device)
        importance = Importance.zeros(network.spec, ledger, network.dtype)
        return cls(network, ledger, importance, outputs_per_class=outputs_per_class)

    @property
    def seed(self) -> int:
        return self.network.seed

    @property
    def seen_rows(self) -> tuple[int, ...]:
        """The output rows of the tasks begun."""
        return tuple(row for rows in self.classes_of.values() for row in rows)

    @property
    def seen_classes(self) -> tuple[int, ...]:
        """The class ids of the tasks begun."""
        return tuple(dict.fromkeys(row // self.outputs_per_class for row in self.seen_rows))

    @property
    def params(self) -> int:
        """Weights that tasks own, and weights outside the network; biases are not counted, as in the paper."""
        owned = sum(self.ledger.owned_weights(l, edge.block) for l, edge in enumerate(self.network.spec.edges, 1))
        return owned + sum(tensor.numel() for name, tensor in self.memory.items() if name.startswith("weights/"))

    @property
    def kept_bytes(self) -> int:
        """Bytes that the method keeps between tasks besides the model itself."""
        return sum(tensor.nbytes for name, tensor in self.memory.items() if not name.startswith(("weights/", "biases/")))

    def begin(self, task: int, classes: tuple[int, ...]) -> None:
        """Begin a task: set its importances to 0, and give its classes output rows if they have none yet."""
        missing = max(classes) + 1 - self.network.spec.n_classes
        if missing > 0:
            self.network.grow_outputs(missing)
            self.ledger.grow_outputs(missing)
        self.classes_of[task] = classes
        self.importance = Importance.zeros(self.network.spec, self.ledger, self.network.dtype)

    def claim(self, l: int, task: int, where: Tensor) -> None:
        """Give unowned places of W_l to a task, with the values the network was initialised with; `where` is shaped like the owner."""
        self.network.initialise(l, where & (self.ledger.owner(l) == 0))
        self.ledger.claim(l, task, where)

    def release(self, l: int, where: Tensor) -> None:
        """Release places of W_l: no task owns them, and their weights are 0. All tensors change in place, as captured graphs require."""
        if (
            self.network.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
        ):  # reading a value is not allowed in a capture
            had = self.ledger.owner(l)[where]
            self.ledger.keeps_past &= not bool(((had > 0) & (had <= self.tasks_learned)).any())
        self.ledger.release(l, where)
        self.network.weight(l).masked_fill_(where, 0.0)

    def end(self, task: int, remember: bool = True) -> None:
        """End a task. `remember` stores its biases and norms for `network.as_of`; under strict isolation they do not change."""
        if remember:
            self.network.remember(task)
        self.tasks_learned = task
        self.optimiser_state = {}
        give_back()


def give_back() -> None:
    """Return free memory to the system.

    A task leaves small allocations (its record, its biases) between its large tensors. The C library would keep the gaps, each slightly
    too small for the next task's tensors, so the process would grow over a long stream without using more.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, without malloc_trim
        return
    trim(0)
