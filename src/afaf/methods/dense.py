"""What dense methods share: the whole network is added with the first lesson, and every lesson moves all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from afaf.bounds import Positive
from afaf.methods.base import Footprint, Method, TaskContext, rows_of, samples_of
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.training.learner import Learner
from afaf.training.losses import LossOver
from afaf.training.plan import LearningPlan


@dataclass(frozen=True)
class DenseOptions:
    loss_over: LossOver = "seen"  # task: old output rows stay untouched; seen: all classes so far; all: reserved rows too
    norm_moves: bool = True
    clip: Positive | None = None  # largest norm of the whole gradient


D = TypeVar("D", bound=DenseOptions)


class DenseMethod(Method[D]):
    """Trains all weights on each lesson's data. The ledger names the last task that moved a weight."""

    def start(self, learner: Learner, context: TaskContext, phase: int) -> None:
        spec, ledger = learner.network.spec, learner.ledger
        for l in range(1, spec.L):
            moving = torch.ones_like(ledger.owner(l), dtype=torch.bool)
            if l == spec.L - 1:
                moving &= rows_of(learner, self._moving_classes(learner, context))[:, None, None]
            learner.network.plant(l, moving & (ledger.owner(l) == 0))
            ledger.hand_on(l, context.task, moving)

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        network, learn = learner.network, self.settings.learn
        biases = {l: torch.ones_like(network.bias(l)) for l in range(1, network.spec.L)}
        biases[network.spec.L - 1] *= rows_of(learner, self._moving_classes(learner, context))
        norms = {layer: torch.ones_like(norm.gain) for layer, norm in network.parameters.norms.items()}
        return LearningPlan(
            task=context.task,
            loss=self._cross_entropy(learner, context, self.options.loss_over),
            outputs=self._outputs(learner, context, self.options.loss_over),
            epochs=learn.epochs,
            batch_size=learn.batch_size,
            lr=learn.lr,
            optimiser=learn.optimiser_of_plan(),
            schedule=learn.schedule_of_plan(),
            biases=biases,
            norms=norms if self.options.norm_moves else {},
            norm_moves=self.options.norm_moves,
            clip=self.options.clip,
        )

    def _moving_classes(self, learner: Learner, context: TaskContext) -> tuple[int, ...]:
        return context.classes if self.options.loss_over == "task" else learner.seen_classes

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        prints, classes = [], 0
        for tasks in self.lessons(len(outline)):
            new = sum(outline.classes_per_task[task - 1] for task in tasks)
            classes += new
            whole = {l: spec.connections(l).weights for l in range(1, spec.L)}
            row = spec.connections(spec.L - 1).fan_in
            live = {**whole, spec.L - 1: classes * row}
            moving = {**whole, spec.L - 1: (new if self.options.loss_over == "task" else classes) * row}
            prints.append(Footprint(samples_of(outline, tasks), self.settings.learn.epochs, live, moving, live))
        return prints
