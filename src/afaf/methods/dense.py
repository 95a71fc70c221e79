"""The base of dense methods: the whole network is added with the first task, and every task trains all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from afaf.bounds import Positive
from afaf.costing.kinds import DenseCosts
from afaf.methods.base import Method, TaskContext, row_mask
from afaf.network.ledger import ABSENT
from afaf.training.learner import Learner
from afaf.training.losses import LossOver
from afaf.training.plan import LearningPlan


@dataclass(frozen=True)
class DenseOptions:
    loss_over: LossOver = "seen"  # task: old output rows stay untouched; seen: all classes so far; all: reserved rows too
    norm_moves: bool = True  # batch norm moves in every task, or in none
    clip: Positive | None = None  # largest norm of the whole gradient


D = TypeVar("D", bound=DenseOptions)


class DenseMethod(DenseCosts, Method[D]):
    """Trains all weights on each task's data. The ledger names the last task that changed a weight."""

    def start(self, learner: Learner, context: TaskContext, phase: int) -> None:
        spec, ledger = learner.network.spec, learner.ledger
        for l in spec.edge_numbers:
            moving = ledger.owner(l) != ABSENT
            if l == spec.E:
                moving &= row_mask(learner, self._moving_classes(learner, context))[:, None, None]
            learner.network.initialise(l, moving & (ledger.owner(l) == 0))
            ledger.reassign(l, context.task, moving)

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        network = learner.network
        biases = {l: torch.ones_like(network.bias(l)) for l in network.spec.edge_numbers}
        biases[network.spec.E] *= row_mask(learner, self._moving_classes(learner, context))
        norms = {layer: torch.ones_like(norm.gain) for layer, norm in network.parameters.norms.items()}
        return self._plan(
            learner,
            context,
            self.options.loss_over,
            biases=biases,
            norms=norms if self.options.norm_moves else {},
            norm_moves=self.options.norm_moves,
            clip=self.options.clip,
        )

    def _moving_classes(self, learner: Learner, context: TaskContext) -> tuple[int, ...]:
        return context.classes if self.options.loss_over == "task" else learner.seen_rows
