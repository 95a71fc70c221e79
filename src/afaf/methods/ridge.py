"""A ridge head on fixed features: what a closed form that never forgets gives, without any sub-network; a control.

The features are fixed before the second task arrives: `trunk`, the last hidden layer of the dense network as trained on the first task, or
`patches`, filters that are random whitened patches of the first task's images. Each task adds its features to a Gram matrix in float64 (see
`learning.closed_form`); the head is the one that all images so far would give together. No image is kept. The regularisation is chosen by
generalised cross-validation, from the same sums of training images. It answers with features and head; the network's own output is unused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from afaf.bounds import Count, Positive, Within
from afaf.errors import ConfigError
from afaf.heads.closed_form import add_to_sums, solve, sums_bytes
from afaf.heads.patches import feature_count, patch_features, whitened_filters
from afaf.methods.base import Actions, Footprint, Predictor, TaskContext, forward_work
from afaf.methods.dense import DenseMethod, DenseOptions
from afaf.network.forward import forward
from afaf.network.spec import NetworkSpec
from afaf.randomness import generator
from afaf.streams.tasks import Outline
from afaf.training.learner import Learner
from afaf.training.losses import LossOver
from afaf.training.named import find, keep
from afaf.training.plan import LearningPlan


@dataclass(frozen=True)
class RidgeOptions(DenseOptions):
    loss_over: LossOver = "task"
    features: Literal["trunk", "patches"] = "trunk"
    strength: Positive | None = None  # lambda in units of the features' mean variance; none: by generalised cross-validation
    filters: Annotated[int, Within(1, 1 << 16)] = 256  # of `patches`; each gives 8 features
    patch: Count = 6  # side of a patch, in pixels


class Ridge(DenseMethod[RidgeOptions]):
    name = "ridge"
    summary = "fits a closed-form ridge head on fixed features, its Gram matrix added up task by task (control)"
    Options = RidgeOptions
    actions = Actions(
        "dense, with the first task; a head",
        "after the first task the head alone",
        "all weights but the head",
        "the first task's features, all of them",
    )

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
        memory, data, last = learner.memory, context.data, learner.network.spec.L - 1
        if self._trains(context.task):
            learner.release(last, learner.ledger.owner(last) > 0)  # the head takes its place
        elif context.task == 1:
            draw = generator(learner.seed, "patches")
            memory["weights/filters"], memory["biases/filters"] = whitened_filters(data, self.options.filters, self.options.patch, draw)
        features, sums = self._features(learner), find(memory, "sums")
        with torch.no_grad():
            for index in torch.arange(len(data), device=data.device).split(512):
                x, labels = data.batch(index)
                sums = add_to_sums(sums, features(x), labels, learner.network.spec.n_classes)
        keep(memory, "sums", sums)
        head, bias = solve(sums, self.options.strength)
        memory["weights/head"], memory["biases/head"] = (tensor.to(data.device, data.dtype).contiguous() for tensor in (head, bias))

    def predictor(self, learner: Learner, task: int | None = None) -> Predictor:
        features, memory = self._features(learner), learner.memory
        return lambda x: torch.nn.functional.linear(features(x), memory["weights/head"], memory["biases/head"])

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        """Besides training the trunk once: one pass for the features of every image, the sums, and an eigenvalue problem (9 d^3)."""
        d, network = self._count(spec), dict.fromkeys(range(1, spec.L), 0)
        if self.options.features == "trunk":
            network |= {l: spec.connections(l).weights for l in range(1, spec.L - 1)}
        prints, classes = [], 0
        for task, footprint in enumerate(super().footprints(spec, outline), 1):
            classes += outline.classes_per_task[task - 1]
            extra = footprint.samples * (self._feature_work(spec) + 2 * d * (d + 1)) + 9 * d**3
            params = d * classes + (self._filter_weights(spec) if self.options.features == "patches" else 0)
            epochs = footprint.epochs if self._trains(task) else 0
            prints.append(replace(footprint, epochs=epochs, owned=network, extra_flops=extra, extra_params=params))
        return prints

    def inference_flops(self, spec: NetworkSpec, outline: Outline) -> int:
        return self._feature_work(spec) + 2 * self._count(spec) * outline.n_classes

    def paper_flops(self, dense_flops: float, dense_params: int, footprints: Sequence[Footprint]) -> float | None:
        return None

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        return {"Gram matrix and sums": sums_bytes(self._count(spec), outline.n_classes)}

    def _trains(self, task: int) -> bool:
        return self.options.features == "trunk" and task == 1

    def _features(self, learner: Learner) -> Callable[[Tensor], Tensor]:
        network, memory = learner.network, learner.memory
        if self.options.features == "patches":
            return lambda x: patch_features(x, memory["weights/filters"], memory["biases/filters"])
        return lambda x: forward(network.spec, network.parameters, x, last=network.spec.L - 2).flatten(1)

    def _count(self, spec: NetworkSpec) -> int:
        return feature_count(self.options.filters) if self.options.features == "patches" else spec.connections(spec.L - 1).fan_in

    def _filter_weights(self, spec: NetworkSpec) -> int:
        return self.options.filters * spec.input_shape[0] * self.options.patch**2

    def _feature_work(self, spec: NetworkSpec) -> int:
        if self.options.features == "trunk":
            return forward_work(spec, {l: spec.connections(l).weights for l in range(1, spec.L - 1)})
        height, width = (size - self.options.patch + 1 for size in spec.input_shape[1:])
        return 2 * height * width * self._filter_weights(spec)
