"""A learning plan: a method's request to an engine, as data and capturable tensor functions.

The connections that the plan's task owns in the ledger are trained; the plan says the rest: which biases and norms are trained, where
gradients are cut, the loss, the optimiser and its schedule, what to accumulate and when to rewire.
It is the only interface between methods and engines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from afaf.network.forward import Parameters
from afaf.training.learner import Learner
from afaf.training.optimisers import SGD, Optimiser
from afaf.training.quadratic import QuadraticPenalty
from afaf.training.schedules import Constant, ReduceOnPlateau, Schedule, epochs_until
from afaf.training.task_data import TaskData


@dataclass
class Step:
    """The input of a loss: one batch, its logits, and the parameters that they were computed with."""

    images: Tensor  # not to be read with `logits_only`: they may be the trunk's features
    labels: Tensor  # output rows
    logits: Tensor
    parameters: Parameters
    features: Tensor | None = None  # (images, values), if the plan has `features`: the values that `feature_neurons` (step.py) have


Loss = Callable[[Step], Tensor]
Rewire = Callable[[Learner, int], None]  # (learner, epoch just ended)


@dataclass(slots=True)
class LearningPlan:
    """The training of one phase of one task."""

    task: int
    loss: Loss
    epochs: int
    batch_size: int
    lr: float
    optimiser: Optimiser = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Constant)
    held_out: TaskData | None = None  # images for the plateau schedule
    phase: int = 0
    outputs: tuple[int, ...] | None = None  # output rows that enter the loss, for the training accuracy (None: all)
    first_trainable: int = 1  # weights of W_l below are constant (l_reuse); the next three fields say which biases and norms train
    biases: dict[int, Tensor] = field(default_factory=dict)  # l of W_l -> 1 where a bias trains (absent: none)
    norms: dict[int, Tensor] = field(default_factory=dict)  # neuron layer -> 1 where gain and shift train (absent: none)
    norm_moves: bool = True  # use batch statistics and update the running ones
    norm_neurons: dict[int, Tensor] | None = None  # layer -> 1 where batch statistics are used and running ones updated (None: all)
    grad_mask: dict[int, Tensor] = field(default_factory=dict)  # neuron layer -> 1 where gradients pass, 0 where they are cut
    masked_outputs: Tensor | None = None  # output rows whose weights count as 0 in this task; only their biases enter the loss
    logits_only: bool = False  # the loss reads logits, labels and features only, see `part_suffices`
    features: bool = False  # it reads `Step.features`
    views: int = 1  # how often each image is in a batch, each time with a crop of its own; `batch_size` counts all of them
    importance: bool = False  # accumulate the importance of connections and neurons
    rewire: Rewire | None = None  # called after every epoch but the last,
    rewire_until: float = 100.0  # percent of the epochs
    rewire_repeats: bool = False  # the same tensor work at every call, on as many connections: an engine may capture it
    clip: float | None = None  # largest norm of the whole gradient
    penalty: QuadraticPenalty | None = None  # added to the loss, or applied after each step
    after_step: Callable[[Parameters, float | Tensor], None] | None = None  # (parameters, lr): a change after each step, in place
    if_diverging: str = "lower learn.lr"  # advice if the loss is not finite

    @property
    def part_suffices(self) -> bool:
        """Whether an engine may compute with a part of the network: neither the loss nor the work after a step reads all of it."""
        return self.logits_only and self.after_step is None and self.penalty is None

    @property
    def cross_entropy_over(self) -> tuple[int, ...] | None:
        """The outputs in the softmax if the loss is plain cross-entropy, which an engine may then compute itself; None for another loss."""
        over: tuple[int, ...] | None = getattr(self.loss, "cross_entropy_over", None)
        return over

    @property
    def loss_penalty(self) -> QuadraticPenalty | None:
        """The penalty if it is a term of the loss."""
        return None if self.penalty is None or self.penalty.proximal else self.penalty

    @property
    def changes_between_epochs(self) -> bool:
        """Whether weights change between epochs, so that an engine must read them again."""
        return self.rewire is not None or isinstance(self.schedule, ReduceOnPlateau)

    def rewires_after(self, epoch: int) -> bool:
        return self.rewire is not None and epoch + 1 < epochs_until(self.rewire_until, self.epochs)

    def coefficients(self, lr: float, epoch: int, steps: int) -> list[tuple[float, ...]]:
        """The optimiser's coefficients for each step of an epoch, from the base rate `lr`."""
        rates = [self.schedule.rate(lr, epoch, self.epochs, step, steps) for step in range(steps)]
        return [self.optimiser.coefficients(rate, epoch * steps + step) for step, rate in enumerate(rates, 1)]

    def norm_changes(self, layer: int) -> bool:
        """Whether anything of a layer's norm changes: its statistics, its gain or its shift."""
        return layer in self.norms or (self.norm_moves and (self.norm_neurons is None or layer in self.norm_neurons))

    def needs_whole(self, layer: int) -> bool:
        """Whether norms of neurons that are not the task's change, so that an engine needs all neurons of the layer."""
        return self.norm_neurons is None and self.norm_changes(layer)

    def check(self, learner: Learner) -> None:
        """Raise ValueError for masks of a wrong shape and layers that do not exist."""
        spec = learner.network.spec
        if self.first_trainable not in spec.edge_numbers:
            raise ValueError(f"plan.first_trainable = {self.first_trainable} is outside 1..{spec.E}")
        normed = {layer: spec.layer(layer).size for layer in spec.normed_layers}
        for name, masks, sizes in (
            ("biases", self.biases, {l: edge.outputs for l, edge in enumerate(spec.edges, 1)}),
            ("norms", self.norms, normed),
            ("norm_neurons", self.norm_neurons or {}, normed),
            ("grad_mask", self.grad_mask, {l: spec.layer(l).size for l in range(1, spec.L + 1)}),
        ):
            for l, mask in masks.items():
                if l not in sizes or mask.shape != (sizes[l],):
                    raise ValueError(f"plan.{name}[{l}] has shape {tuple(mask.shape)}; layers and sizes are {sizes}")
        if self.norm_neurons is not None and not self.norms.keys() <= self.norm_neurons.keys():
            raise ValueError("plan.norms has layers that plan.norm_neurons lacks: a norm that trains uses batch statistics")
