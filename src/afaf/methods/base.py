"""What a method is: it decides what may change, and hands plans to an engine. It has no loop and knows no device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from afaf.errors import ConfigError
from afaf.network.ledger import Unit
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.training.learner import Learner
from afaf.training.losses import CrossEntropy, LossOver, outputs_in_loss
from afaf.training.plan import LearningPlan, Loss
from afaf.training.settings import Settings
from afaf.training.task_data import TaskData


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)


@dataclass(frozen=True)
class TaskContext:
    """What is learned in one go: usually one task; all of them for joint training."""

    task: int
    classes: tuple[int, ...]
    data: TaskData
    held_out: TaskData | None = None  # images that are not learned from, for the plateau schedule
    warn: Callable[[str], None] = _warn  # tell the user of something; a run keeps it with its results


@dataclass(frozen=True)
class Footprint:
    """What one phase of one lesson computes with, known without training: weights by l of W_l."""

    samples: int
    epochs: int
    live: dict[int, int]  # weights a forward pass uses
    moving: dict[int, int]  # weights that learn
    owned: dict[int, int]  # weights owned afterwards
    extra_flops: int = 0  # besides the network's own: a teacher's answers, an estimate of importance, a head in closed form
    extra_params: int = 0  # weights outside the network that the model answers with afterwards

    @property
    def params(self) -> int:
        return sum(self.owned.values()) + self.extra_params


@dataclass(frozen=True)
class Actions:
    """How a method alters the network when a task arrives (the paper's Table 1, in words)."""

    adds: str
    updates: str
    fixes: str
    reuses: str


Predictor = Callable[[Tensor], Tensor]  # images -> logits of all output rows
O = TypeVar("O")


class Method(Generic[O]):
    """The base of all methods. A subclass sets `name`, `summary` and `Options`, and says what `start`, `plan` and `finish` do.

    `start` may change the learner; `plan` only reads it, so that an interrupted lesson can be planned again; `finish` closes the lesson.
    A method with several phases (train, prune, retrain) is asked for each phase in turn.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Options: ClassVar[type[Any]]
    actions: ClassVar[Actions | None] = None
    phases: ClassVar[int] = 1
    tradeoff: ClassVar[str | None] = None  # the option that buys stability with plasticity: what `afaf tune` chooses
    tradeoff_from: ClassVar[float] = 1.0  # its strongest value worth trying

    def __init__(self, options: O, settings: Settings):
        self.options = options
        self.settings = settings

    @property
    def unit(self) -> Unit:
        """What the ledger's owners are kept for: connections, or single weights."""
        return "connection"

    def check(self, spec: NetworkSpec, outline: Outline) -> None:
        """Refuse settings that cannot work for this network and stream, before anything is learned."""

    def lessons(self, n_tasks: int) -> list[tuple[int, ...]]:
        """Which tasks (numbered from 1) are learned together, in order."""
        return [(task,) for task in range(1, n_tasks + 1)]

    def late_options(self) -> tuple[int, frozenset[str]]:
        """A task, and the options that make no difference to what is learned before it: runs that differ in them alone share that."""
        return 1, frozenset()

    def start(self, learner: Learner, context: TaskContext, phase: int) -> None:
        raise NotImplementedError

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        raise NotImplementedError

    def finish(self, learner: Learner, context: TaskContext) -> None:
        """Close the lesson: consolidate, or measure what the method keeps."""

    def predictor(self, learner: Learner, task: int | None = None) -> Predictor:
        """How the learned model answers; with `task`, how it answers when the task is known (the same logits by default)."""
        return learner.network

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        """What learning the stream will use, lesson by lesson and phase by phase; a method that freezes or prunes says so here."""
        raise ConfigError(f"method '{self.name}' does not say what it will use: it has no footprints, so its costs are unknown")

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        """What is kept between tasks besides the weights, in bytes, after the last task: Fisher, old model, Gram, masks."""
        return {}

    def inference_flops(self, spec: NetworkSpec, outline: Outline) -> int:
        """Multiplications and additions of one answer, after the last task."""
        return forward_work(spec, self.footprints(spec, outline)[-1].owned)

    def paper_flops(self, dense_flops: float, dense_params: int, footprints: Sequence[Footprint]) -> float | None:
        """The paper's estimate for the whole sequence: (1 - s) f_D, with s the final sparsity. None where it has no formula."""
        return dense_flops * footprints[-1].params / dense_params

    def paper_flops_by_task(self, dense_flops: float, dense_params: int, footprints: Sequence[Footprint]) -> float | None:
        """The same with each task charged its own samples only; it differs where the printed formula charges every task for all."""
        return self.paper_flops(dense_flops, dense_params, footprints)

    # Pieces that methods share.

    def _outputs(self, learner: Learner, context: TaskContext, loss_over: LossOver) -> tuple[int, ...]:
        return outputs_in_loss(loss_over, context.classes, learner.seen_classes, learner.network.spec.n_classes)

    def _cross_entropy(self, learner: Learner, context: TaskContext, loss_over: LossOver) -> Loss:
        network = learner.network
        return CrossEntropy(self._outputs(learner, context, loss_over), network.spec.n_classes, network.device)


def samples_of(outline: Outline, tasks: tuple[int, ...]) -> int:
    return sum(outline.train_counts[task - 1] for task in tasks)


def forward_work(spec: NetworkSpec, live: Mapping[int, int]) -> int:
    """Multiplications and additions of a forward pass for one image, where `live` counts the weights of W_l."""
    return sum(2 * spec.connections(l).positions * count for l, count in live.items())


def ledger_bytes(spec: NetworkSpec, unit: Unit) -> dict[str, int]:
    """What the ledger takes: for every connection (or weight) its owner, for every neuron who fixed it."""
    places = sum(join.weights if unit == "weight" else join.inputs * join.outputs for join in spec.joins)
    return {"owners": 2 * places, "fixed neurons": 2 * sum(layer.size for layer in spec.layers)}


def rows_of(learner: Learner, classes: tuple[int, ...]) -> Tensor:
    """A mask over the output rows."""
    rows = torch.zeros(learner.network.spec.n_classes, dtype=torch.bool, device=learner.network.device)
    rows[list(classes)] = True
    return rows
