"""Parts that go beyond the paper, each a switch that works with every method: the section `parts` of a configuration.

A part changes the task that a method sees (rotation self-labels: four outputs a class), adds a term to the loss (contrastive), or changes
the answer made of the logits (mirror, router).
Methods and engines do not know of them. docs/beyond-choices.md says how they were chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from afaf.bounds import Count, NotNegative, Within
from afaf.costing.predict import Costs, predict_costs
from afaf.errors import ConfigError
from afaf.evaluation.activations import activation_count, activation_flops
from afaf.evaluation.router import Router
from afaf.evaluation.self_labels import MIRRORED, ROTATIONS, class_logits
from afaf.methods.base import Method, Predictor
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline, Preparation, Split, Task, stratified
from afaf.training.learner import Learner
from afaf.training.losses import SupervisedContrastive, total
from afaf.training.plan import LearningPlan
from afaf.training.task_data import TaskData


@dataclass(frozen=True)
class PartsSettings:
    rotations: bool = False  # rotation self-labels: four outputs a class
    mirror: bool = False  # answer with the mean over an image and its mirror image, for classes learned with mirror images
    contrastive: NotNegative = 0.0  # strength of a supervised contrastive loss on the last hidden layer
    router: Literal["none", "ridge"] = "none"  # ridge on patches beside the network's logits
    activations: bool = False  # the router also reads the first task's neurons; needs strict isolation
    filters: Annotated[int, Within(1, 1 << 16)] = 256  # of the router; each gives 8 features
    patch: Count = 6  # side of its filters, in pixels
    held_out: Annotated[float, Within(0, 1, above=True, below=True)] = 0.05  # share of training images that choose the router's weight

    @property
    def outputs_per_class(self) -> int:
        return ROTATIONS if self.rotations else 1

    def check(self, shape: tuple[int, ...], strict: bool) -> None:
        """Refuse parts that such inputs cannot have, or a method that is not strict."""
        if self.activations and not strict:
            raise ConfigError("parts.activations needs neurons that never change: set method.strict=true, or parts.activations=false")
        if self.activations and self.router == "none":
            raise ConfigError("parts.activations are read by a router: set parts.router=ridge, or parts.activations=false")
        if self.rotations and (len(shape) != 3 or shape[1] != shape[2]):
            raise ConfigError(f"parts.rotations needs square images; this stream brings inputs of shape {shape}: set parts.rotations=false")
        if self.mirror and len(shape) != 3:
            raise ConfigError(f"parts.mirror needs images; this stream brings inputs of shape {shape}: set parts.mirror=false")
        if self.router != "none" and (len(shape) != 3 or min(shape[1:]) < self.patch):
            raise ConfigError(
                f"parts.router needs images of at least parts.patch = {self.patch} pixels a side; "
                f"this stream brings inputs of shape {shape}: set parts.router=none, or a smaller parts.patch"
            )

    def outputs(self, outline: Outline) -> Outline:
        """The stream as a method sees it: with rotations, four outputs and four samples for one."""
        k = self.outputs_per_class
        if k == 1:
            return outline
        names = tuple(tuple(f"{name}, rotation {v}" for name in names for v in range(k)) for names in outline.class_names)
        return replace(outline, class_names=names, train_counts=tuple(k * count for count in outline.train_counts))

    def costs_of(self, method: Method[Any], spec: NetworkSpec, outline: Outline) -> Costs:
        """The costs of a method with these parts; `spec` has the output rows that the parts ask for."""
        outputs = self.outputs(outline)
        first = method.first_neurons(spec, outputs.classes_per_task[0]) if self.activations else {}
        return self.add_costs(predict_costs(spec, outputs, method), spec, outline, first)

    def add_costs(self, costs: Costs, spec: NetworkSpec, outline: Outline, neurons: Mapping[int, int]) -> Costs:
        """The costs with those of the parts: rotations and the mirror multiply an answer, the router adds its head and its sums.

        `neurons` are those of the first task's sub-network, by group.
        """
        mirror = 2 if self.mirror else 1
        inference = costs.inference_flops * self.outputs_per_class * mirror
        params, kept, small = costs.params, dict(costs.kept), costs.small_bytes
        if self.mirror:
            kept["mirrored classes"] = 4 * outline.n_classes
        if self.router == "ridge":
            router, n = Router(self.filters, self.patch), outline.n_classes
            activations = activation_count(spec, neurons) if self.activations else 0
            params += router.params(spec.input_shape[0], n, activations)
            small += 4 * (self.filters + n)  # biases
            kept["router: Gram matrix and sums"] = router.kept_bytes(n, len(outline), activations)
            inference += mirror * router.flops(spec.input_shape, n, activations)
            inference += mirror * activation_flops(spec, neurons) if self.activations else 0
        return replace(
            costs,
            params=params,
            params_ratio=params / costs.dense_params,
            inference_flops=inference,
            inference_flops_ratio=costs.inference_flops_ratio * inference / max(1, costs.inference_flops),
            kept=kept,
            kept_bytes=sum(kept.values()),
            small_bytes=small,
        )


@dataclass(frozen=True)
class PreparedTask:
    """What a method learns, and what the parts need of it afterwards."""

    rows: tuple[int, ...]  # output rows
    data: TaskData
    images: TaskData | None = None  # the same images upright, labelled by class, for the router
    held_out: TaskData | None = None  # images that were not learned from; None if no class has two images
    mirrored: tuple[int, ...] = ()  # classes whose images are mirrored while they are learned


class Parts:
    """The parts of one run, on its device."""

    def __init__(self, settings: PartsSettings, seed: int, device: torch.device, dtype: torch.dtype):
        self.settings, self.seed, self.device, self.dtype = settings, seed, device, dtype
        self.router = Router(settings.filters, settings.patch, settings.activations) if settings.router == "ridge" else None

    @property
    def any(self) -> bool:
        """Whether answers are other than the network's logits."""
        return self.settings.rotations or self.settings.mirror or self.router is not None

    def prepare(self, tasks: Sequence[Task], negatives: Sequence[tuple[Split, Preparation]] = ()) -> PreparedTask:
        """The tasks that are learned together, as the method sees them. `negatives` are images of none of their classes."""
        splits = [(task.train, task.preparation) for task in tasks]
        images = held_out = None
        if self.router is not None:
            cuts = [held_aside(task.train.labels, self.settings.held_out, self.seed) for task in tasks]
            aside = [(task.train.take(chosen), task.preparation) for task, (_, chosen) in zip(tasks, cuts, strict=True) if len(chosen)]
            held_out = self._data(aside) if aside else None
            splits = [(task.train.take(kept), task.preparation) for task, (kept, _) in zip(tasks, cuts, strict=True)]
            images = self._data(splits)
        k = self.settings.outputs_per_class
        rows = tuple(k * c + v for task in tasks for c in task.classes for v in range(k))
        mirrored = tuple(c for task in tasks for c in task.classes if task.preparation.augment != "none")
        return PreparedTask(rows, self.by_row(splits, negatives), images, held_out, mirrored)

    def by_row(self, splits: Sequence[tuple[Split, Preparation]], negatives: Sequence[tuple[Split, Preparation]] = ()) -> TaskData:
        """Images labelled by output row, as a loss reads them: with rotations, four samples for one."""
        k = self.settings.outputs_per_class
        labelled = [(Split(split.images, split.labels * k), preparation) for split, preparation in splits]
        return self._data([*labelled, *negatives], k)

    def adjust(self, plan: LearningPlan) -> None:
        """Add the parts' terms to a plan's loss."""
        if self.settings.contrastive:
            plan.loss, plan.features = total(plan.loss, SupervisedContrastive(self.settings.contrastive)), True

    def finish(self, prepared: PreparedTask, learner: Learner, predict: Predictor) -> None:
        """After a task is learned; `predict` gives the logits of all output rows."""
        if self.settings.mirror:
            flags = torch.zeros(learner.network.spec.n_classes // learner.outputs_per_class, device=self.device)
            before = learner.memory.get(MIRRORED, flags[:0])  # of fewer classes, if outputs were added since
            flags[: len(before)] = before
            flags[list(prepared.mirrored)] = 1
            learner.memory[MIRRORED] = flags
        if self.router is not None and prepared.images is not None:
            self.router.learn(learner, prepared.images, prepared.held_out, class_logits(predict, learner))

    def remove(self, learner: Learner, class_id: int) -> None:
        """Forget a class that is no longer predicted, as far as that needs no images."""
        if self.router is not None:
            self.router.remove(learner, class_id)

    def predictor(self, learner: Learner, predict: Predictor) -> Predictor:
        """A function from images to scores of classes, given one to logits of output rows."""
        answer = class_logits(predict, learner)
        return answer if self.router is None else self.router.predictor(learner, answer)

    def _data(self, splits: Sequence[tuple[Split, Preparation]], rotations: int = 1) -> TaskData:
        return TaskData(splits, self.device, self.dtype, rotations=rotations)


def held_aside(labels: NDArray[Any], fraction: float, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Indices of the images that are learned, and of those held out: some of each class that has at least two images."""
    several = np.bincount(labels)[labels] > 1
    aside = stratified(np.where(several, labels, -1), fraction, seed, "held out by parts")[1] if several.any() else labels[:0]
    return np.setdiff1d(np.arange(len(labels)), aside), aside
