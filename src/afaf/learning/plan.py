"""A learning plan: what a method asks of an engine, as data and capturable tensor functions.

What moves are always the connections that the ledger gives to the plan's task; the plan says the rest: which biases and norms move,
where gradients are cut, the loss, what to accumulate and when to rewire. Methods and engines meet here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from afaf.learning.learner import Learner
from afaf.network.forward import Parameters


@dataclass
class Step:
    """What a loss may look at: one batch, the logits for it, and the parameters that gave them."""

    images: Tensor
    labels: Tensor  # global class ids
    logits: Tensor
    parameters: Parameters


Loss = Callable[[Step], Tensor]
Rewire = Callable[[Learner, int], None]  # (learner, epoch just ended)


@dataclass
class LearningPlan:
    """How one phase of one task is to be learned."""

    task: int
    loss: Loss
    epochs: int
    batch_size: int
    lr: float
    phase: int = 0
    first: int = 1  # W_l below stands still, with its biases: l_reuse
    biases: dict[int, Tensor] = field(default_factory=dict)  # l of W_l -> which biases move (absent: none)
    norms: dict[int, Tensor] = field(default_factory=dict)  # neuron layer -> which gains and shifts move (absent: none)
    norm_moves: bool = True  # batch statistics in training, running ones keep moving
    passes: dict[int, Tensor] = field(default_factory=dict)  # neuron layer -> 1 where gradients pass, 0 where they are cut
    silenced: Tensor | None = None  # output rows whose weights count as 0 while this task is learned; their biases stay
    importance: bool = False  # accumulate the importance of connections and neurons
    rewire: Rewire | None = None  # called after every epoch but the last
    clip: float | None = None  # largest norm of the whole gradient
    after_step: Callable[[Parameters, float], None] | None = None  # (parameters, lr): a proximal step, in place
