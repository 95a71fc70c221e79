"""PackNet (Mallya and Lazebnik, CVPR 2018): train all free weights, prune by magnitude, retrain the kept ones, then never change them.

As in the authors' code: pruning is layer by layer, so that each task keeps the same share of every layer; each task's output rows are its
own and are not pruned; biases and norms are fixed after the first task; pruned weights are 0 and the next task starts from there. In
class-IL all connections are used; if the task is known, only those in its mask: the weights of its own and of earlier tasks
(`0 < owner <= task`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from afaf.bounds import CountOrZero, Percent
from afaf.costing.kinds import PackNetCosts
from afaf.errors import CapacityError
from afaf.methods.base import Method, Predictor, TaskContext, row_mask
from afaf.network.ledger import Unit
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.subnets.consolidate import largest
from afaf.training.learner import Learner
from afaf.training.losses import LossOver
from afaf.training.plan import LearningPlan

TRAIN, RETRAIN = 0, 1  # the phases


@dataclass(frozen=True)
class PackNetOptions:
    share: Percent = 20.0  # of each layer's weights that a task keeps, in percent; the task that completes the layer keeps what is left
    retrain_epochs: CountOrZero = 20  # after pruning; none where nothing was pruned
    start_at: Literal["zero", "initial"] = "zero"  # free weights of later tasks: where pruning left them (its code), or initial values
    loss_over: LossOver = "task"  # task: its own output rows; seen: all classes so far; all: reserved rows too
    mask_other_rows: bool = False  # count the output rows of other tasks as 0 while a task is learned, as SpaceNet does


class PackNet(PackNetCosts, Method[PackNetOptions]):
    name = "packnet"
    summary = "trains the free weights densely, prunes them to a share by magnitude, retrains and fixes the rest"
    Options = PackNetOptions
    phases = 2

    @property
    def unit(self) -> Unit:
        return "weight"

    def check(self, spec: NetworkSpec, outline: Outline) -> None:
        if self.options.share == 0 or self._completes(len(outline) - 1):
            raise CapacityError(
                f"method.share = {self.options.share} leaves nothing for task {len(outline)}: "
                f"{len(outline)} tasks have room for {100 // len(outline)} percent each"
            )

    def start(self, learner: Learner, context: TaskContext, phase: int) -> None:
        spec, ledger = learner.network.spec, learner.ledger
        hidden = range(1, spec.E)
        if phase == RETRAIN:
            for l in hidden:
                own = ledger.owned_by(l, context.task)
                count = self._kept_weights(spec.edge(l).weights, context.task)
                learner.release(l, own & ~largest(learner.network.weight(l), own, count))
            return
        planted = context.task == 1 or self.options.start_at == "initial"
        for l in hidden:
            (learner if planted else ledger).claim(l, context.task, ledger.owner(l) == 0)
        learner.claim(spec.E, context.task, (ledger.owner(spec.E) == 0) & row_mask(learner, context.classes)[:, None, None])

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        network, first = learner.network, context.task == 1
        retrain_epochs = 0 if self._completes(context.task) else self.options.retrain_epochs
        biases = {network.spec.E: row_mask(learner, context.classes).to(network.dtype)}
        if first:
            biases |= {l: torch.ones_like(network.bias(l)) for l in range(1, network.spec.E)}
        return self._plan(
            learner,
            context,
            self.options.loss_over,
            phase=phase,
            epochs=retrain_epochs if phase == RETRAIN else self.settings.learn.epochs,
            biases=biases,
            norms={layer: torch.ones_like(norm.gain) for layer, norm in network.parameters.norms.items()} if first else {},
            norm_moves=first,
            masked_outputs=~row_mask(learner, context.classes) if self.options.mask_other_rows else None,
        )

    def predictor(self, learner: Learner, task: int | None = None) -> Predictor:
        """The network with all connections or, if the task is known and learned, with its mask."""
        return learner.network.as_of(task, learner.ledger) if task in learner.network.snapshots else learner.network
