"""PackNet (Mallya and Lazebnik, CVPR 2018): train densely on the free weights, prune by magnitude, retrain what is kept, fix it for ever.

After its own code: pruned layer by layer, so that each task keeps the same share of every layer; each task's output rows are its own and
are not pruned; biases and norms are fixed after the first task; pruned weights are 0 and the next task starts from there. In class-IL all
connections answer; when the task is known its own mask does: the weights of its own and of earlier tasks (`0 < owner <= task`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import torch

from afaf.bounds import CountOrZero, Percent
from afaf.errors import CapacityError
from afaf.methods.base import Actions, Footprint, Method, Predictor, TaskContext, ledger_bytes, rows_of, samples_of
from afaf.network.ledger import Unit
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.subnets.prune import largest
from afaf.subnets.sizes import share
from afaf.training.learner import Learner
from afaf.training.losses import LossOver
from afaf.training.plan import LearningPlan

TRAIN, RETRAIN = 0, 1  # the phases


@dataclass(frozen=True)
class PackNetOptions:
    share: Percent = 20.0  # of each layer's weights that a task keeps, in percent; the task that completes the layer keeps what is left
    retrain_epochs: CountOrZero = 20  # after pruning; none where nothing was pruned
    start_at: Literal["zero", "initial"] = "zero"  # free weights of later tasks: where pruning left them (its code), or initial values
    loss_over: LossOver = "task"
    mask_other_rows: bool = False  # count the output rows of other tasks as 0 while a task is learned, as SpaceNet does


class PackNet(Method[PackNetOptions]):
    name = "packnet"
    summary = "trains the free weights densely, prunes them to a share by magnitude, retrains and fixes the rest"
    Options = PackNetOptions
    actions = Actions("dense on the free weights, then pruned", "the task's own weights", "old weights", "no: all old weights take part")
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
        hidden = range(1, spec.L - 1)
        if phase == RETRAIN:
            for l in hidden:
                own = ledger.owned_by(l, context.task)
                count = self._kept_weights(spec.connections(l).weights, context.task)
                learner.release(l, own & ~largest(learner.network.weight(l), own, count))
            return
        planted = context.task == 1 or self.options.start_at == "initial"
        for l in hidden:
            (learner if planted else ledger).claim(l, context.task, ledger.owner(l) == 0)
        learner.claim(spec.L - 1, context.task, (ledger.owner(spec.L - 1) == 0) & rows_of(learner, context.classes)[:, None, None])

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        network, learn, first = learner.network, self.settings.learn, context.task == 1
        retrain_epochs = 0 if self._completes(context.task) else self.options.retrain_epochs
        biases = {network.spec.L - 1: rows_of(learner, context.classes).to(network.dtype)}
        if first:
            biases |= {l: torch.ones_like(network.bias(l)) for l in range(1, network.spec.L - 1)}
        return LearningPlan(
            task=context.task,
            phase=phase,
            loss=self._cross_entropy(learner, context, self.options.loss_over),
            outputs=self._outputs(learner, context, self.options.loss_over),
            epochs=retrain_epochs if phase == RETRAIN else learn.epochs,
            batch_size=learn.batch_size,
            lr=learn.lr,
            optimiser=learn.optimiser_of_plan(),
            schedule=learn.schedule_of_plan(),
            biases=biases,
            norms={layer: torch.ones_like(norm.gain) for layer, norm in network.parameters.norms.items()} if first else {},
            norm_moves=first,
            masked_outputs=~rows_of(learner, context.classes) if self.options.mask_other_rows else None,
        )

    def predictor(self, learner: Learner, task: int | None = None) -> Predictor:
        """With all connections; when the task is known and learned, with its own mask."""
        return learner.network.as_of(task, learner.ledger) if task in learner.network.snapshots else learner.network

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        prints, classes, taken = [], 0, dict.fromkeys(range(1, spec.L - 1), 0)
        row, epochs = spec.connections(spec.L - 1).fan_in, self.settings.learn.epochs
        for task, new in enumerate(outline.classes_per_task, 1):
            samples, classes = samples_of(outline, (task,)), classes + new
            output, own_rows = {spec.L - 1: classes * row}, {spec.L - 1: new * row}
            whole = {l: spec.connections(l).weights for l in taken}
            kept = {l: self._kept_weights(weights, task) for l, weights in whole.items()}
            free = {l: weights - taken[l] for l, weights in whole.items()}
            taken = {l: taken[l] + kept[l] for l in taken}
            retrain = 0 if self._completes(task) else self.options.retrain_epochs
            prints.append(Footprint(samples, epochs, whole | output, free | own_rows, whole | output))
            prints.append(Footprint(samples, retrain, taken | output, kept | own_rows, taken | output))
        return prints

    def paper_flops(self, dense_flops: float, dense_params: int, footprints: Sequence[Footprint]) -> float:
        """As printed: the sum over tasks of f_D d_t + f_t^tune, with d_t the density of what is trained and f_D the *whole sequence's*."""
        training, tuning = self._paper_terms(dense_params, footprints)
        return dense_flops * (sum(density for density, _ in training) + tuning)

    def paper_flops_by_task(self, dense_flops: float, dense_params: int, footprints: Sequence[Footprint]) -> float:
        """With the f_D of each task's own samples, which is what training it costs by the same reckoning."""
        training, tuning = self._paper_terms(dense_params, footprints)
        return dense_flops * (sum(density * part for density, part in training) + tuning)

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        return {"masks": ledger_bytes(spec, self.unit)["owners"]}

    def _paper_terms(self, dense_params: int, footprints: Sequence[Footprint]) -> tuple[list[tuple[float, float]], float]:
        """For each task d_t and its part of all samples; and the sum of f_t^tune / f_D, which is of the task's own samples."""
        train, retrain = footprints[TRAIN::2], footprints[RETRAIN::2]
        samples = sum(f.samples for f in train)
        owned = [0, *(f.params for f in retrain[:-1])]
        training = [(1 - before / dense_params, f.samples / samples) for f, before in zip(train, owned, strict=True)]
        return training, sum(f.samples * f.epochs * sum(f.moving.values()) for f in retrain) / (samples * train[0].epochs * dense_params)

    def _completes(self, task: int) -> bool:
        """Whether the shares of the tasks up to this one make up the whole layer: then the task keeps what is left, and prunes nothing."""
        return Fraction(str(self.options.share)) * task >= 100

    def _kept_weights(self, weights: int, task: int) -> int:
        each = share(self.options.share, weights)
        return weights - (task - 1) * each if self._completes(task) else each
