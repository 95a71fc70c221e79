"""A learning plan: what a method asks of an engine, as data and capturable tensor functions.

What moves are always the connections that the ledger gives to the plan's task; the plan says the rest: which biases and norms move,
where gradients are cut, the loss, what to accumulate and when to rewire. Methods and engines meet here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from afaf.network.forward import Parameters
from afaf.training.learner import Learner


@dataclass
class Step:
    """What a loss may look at: one batch, the logits for it, and the parameters that gave them."""

    images: Tensor
    labels: Tensor  # global class ids
    logits: Tensor
    parameters: Parameters


Loss = Callable[[Step], Tensor]
Rewire = Callable[[Learner, int], None]  # (learner, epoch just ended)


@dataclass(slots=True)
class LearningPlan:
    """How one phase of one task is to be learned."""

    task: int
    loss: Loss
    epochs: int
    batch_size: int
    lr: float
    phase: int = 0
    outputs: tuple[int, ...] | None = None  # output rows that enter the loss, for the training accuracy (None: all)
    first_trainable: int = 1  # weights of W_l below stand still (l_reuse); biases and norms move where the next three fields say so
    biases: dict[int, Tensor] = field(default_factory=dict)  # l of W_l -> 1 where a bias moves (absent: none does)
    norms: dict[int, Tensor] = field(default_factory=dict)  # neuron layer -> 1 where gain and shift move (absent: none do)
    norm_moves: bool = True  # batch statistics in training, running ones keep moving
    grad_mask: dict[int, Tensor] = field(default_factory=dict)  # neuron layer -> 1 where gradients pass, 0 where they are cut
    masked_outputs: Tensor | None = None  # output rows whose weights count as 0 while this task is learned; their biases stay
    logits_only: bool = False  # the loss looks at logits and labels alone, see `in_part`
    importance: bool = False  # accumulate the importance of connections and neurons
    rewire: Rewire | None = None  # called after every epoch but the last
    rewire_repeats: bool = False  # the same tensor work at every call, on as many connections: an engine may capture it
    until: Callable[[], bool] | None = None  # asked when an epoch has ended and was told of: with a yes it was the last
    clip: float | None = None  # largest norm of the whole gradient
    after_step: Callable[[Parameters, float], None] | None = None  # (parameters, lr): a proximal step, in place
    if_diverging: str = "lower learn.lr"  # what to do should the loss leave the finite numbers

    @property
    def in_part(self) -> bool:
        """Whether an engine may compute with a part of the network: neither the loss nor what follows a step looks at all of it."""
        return self.logits_only and self.after_step is None

    def norm_changes(self, layer: int) -> bool:
        """Whether anything of a layer's norm moves: its statistics, its gain or its shift."""
        return self.norm_moves or layer in self.norms

    def check(self, learner: Learner) -> None:
        """A plan that an engine could only misread is the method's mistake, and named."""
        spec = learner.network.spec
        if not 1 <= self.first_trainable <= spec.L - 1:
            raise ValueError(f"plan.first_trainable = {self.first_trainable} is outside 1..{spec.L - 1}")
        for name, masks, sizes in (
            ("biases", self.biases, {l: spec.layer(l + 1).size for l in range(1, spec.L)}),
            ("norms", self.norms, {layer: len(norm.gain) for layer, norm in learner.network.parameters.norms.items()}),
            ("grad_mask", self.grad_mask, {l: spec.layer(l).size for l in range(1, spec.L + 1)}),
        ):
            for l, mask in masks.items():
                if l not in sizes or mask.shape != (sizes[l],):
                    raise ValueError(f"plan.{name}[{l}] has shape {tuple(mask.shape)}; layers and sizes are {sizes}")
