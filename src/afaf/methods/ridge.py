"""A ridge head on fixed features: a closed form that never forgets, without sub-networks; a control.

The features are fixed before the second task arrives: `trunk`, the last hidden layer of the dense network as trained on the first task, or
`patches`, filters that are random whitened patches of the first task's images. Each task adds its features to a Gram matrix in float64 (see
`heads/ridge.py`); the head is that of all images so far together. No image is kept. The regularisation is chosen by
generalised cross-validation, from the same sums of training images. Predictions use features and head; the network's own output is unused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Literal

import torch
from torch import Tensor

from afaf.bounds import Count, Positive, Within
from afaf.costing.kinds import RidgeCosts
from afaf.errors import ConfigError
from afaf.heads.patches import patch_features, whitened_filters
from afaf.heads.ridge import least_squares
from afaf.heads.sums import Sums
from afaf.methods.base import Predictor, TaskContext
from afaf.methods.dense import DenseMethod, DenseOptions
from afaf.network.forward import forward
from afaf.network.spec import NetworkSpec
from afaf.randomness import generator
from afaf.streams.tasks import Outline
from afaf.training.learner import Learner
from afaf.training.losses import LossOver
from afaf.training.named import keep_tensors, kept_tensors
from afaf.training.plan import LearningPlan


@dataclass(frozen=True)
class RidgeOptions(DenseOptions):
    loss_over: LossOver = "task"
    features: Literal["trunk", "patches"] = "trunk"
    strength: Positive | None = None  # lambda in units of the features' mean variance; none: by generalised cross-validation
    filters: Annotated[int, Within(1, 1 << 16)] = 256  # of `patches`; each gives 8 features
    patch: Count = 6  # side of a patch, in pixels


class Ridge(RidgeCosts, DenseMethod[RidgeOptions]):
    name = "ridge"
    summary = "fits a closed-form ridge head on fixed features, its Gram matrix added up task by task (control)"
    Options = RidgeOptions
    heeds_task = False

    def check(self, spec: NetworkSpec, outline: Outline) -> None:
        options, shape = self.options, spec.input_shape
        if options.features == "patches" and (len(shape) == 1 or options.patch > min(shape[1:])):
            raise ConfigError(
                f"method.features=patches needs images of at least method.patch = {options.patch} pixels a side; "
                f"this stream brings inputs of shape {shape}: set method.patch, or method.features=trunk"
            )

    def start(self, learner: Learner, context: TaskContext, phase: int) -> None:
        if self._trains(context.task):
            super().start(learner, context, phase)

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        plan = super().plan(learner, context, phase)
        if not self._trains(context.task):
            plan.epochs = 0
        return plan

    def finish(self, learner: Learner, context: TaskContext) -> None:
        memory, data, last = learner.memory, context.data, learner.network.spec.E
        if self._trains(context.task):
            learner.release(last, learner.ledger.owner(last) > 0)  # the head takes its place
        elif context.task == 1:
            draw = generator(learner.seed, "patches")
            memory["weights/filters"], memory["biases/filters"] = whitened_filters(data, self.options.filters, self.options.patch, draw)
        features, rows, kept = self._features(learner), learner.network.spec.n_classes, kept_tensors(memory, "sums")
        with torch.no_grad():
            parts = map(data.batch, torch.arange(len(data), device=data.device).split(512))
            sums = reduce(Sums.__add__, (Sums.of(features(x), labels, rows) for x, labels in parts))
        if kept:
            sums = Sums(kept["counts"], kept["cross"].T.contiguous(), kept["gram"]) + sums
        cross, total = sums.totals.T.contiguous(), sums.totals.sum(0)
        keep_tensors(memory, "sums", {"gram": sums.gram, "cross": cross, "total": total, "counts": sums.counts})
        head, bias = self._solved(sums)
        memory["weights/head"], memory["biases/head"] = (tensor.to(data.device, data.dtype).contiguous() for tensor in (head, bias))

    def _solved(self, sums: Sums) -> tuple[Tensor, Tensor]:
        """The head and its bias; a strength that is lost in rounding cannot make up for features that depend on each other."""
        strength = self.options.strength
        try:
            return least_squares(sums, strength)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # PyTorch does not list it
            if strength is None or not bool(sums.gram.isfinite().all()):  # not the strength's fault
                raise
            raise ConfigError(
                f"method.strength={strength:g} is too weak to fit a head on the features of this stream: "
                "raise it, or leave it out, so that cross-validation chooses one"
            ) from None

    def predictor(self, learner: Learner, task: int | None = None) -> Predictor:
        features, memory = self._features(learner), learner.memory
        return lambda x: torch.nn.functional.linear(features(x), memory["weights/head"], memory["biases/head"])

    def _features(self, learner: Learner) -> Callable[[Tensor], Tensor]:
        network, memory = learner.network, learner.memory
        if self.options.features == "patches":
            return lambda x: patch_features(x, memory["weights/filters"], memory["biases/filters"])
        return lambda x: forward(network.spec, network.parameters, x, stop=network.spec.edges[-1].source).flatten(1)
