"""Optimisers as data, each with its update of one tensor.

Engines keep the buffers: they gather, scatter and save them like the importances. Gradients are already masked: they are 0 where nothing
may move, and so are the buffers. Weight decay acts only on the task's own connections, not on biases and norms. The importance of a step is
|change x gradient|, with the gradient of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.training.learner import Learner
from afaf.training.named import Named

Number = float | Tensor  # a captured step reads coefficients from memory
Buffers = Sequence[Tensor]
Coefficients = list[tuple[float, ...]]  # of each step of an epoch


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent as PyTorch defines it, with dampening 0."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether a step is w <- w - lr x gradient."""
        return not self.momentum and not self.weight_decay

    @property
    def buffers(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def coefficients(self, lr: float, step: int) -> tuple[float, ...]:
        """The numbers that an update reads at this step, counted from 1."""
        return (lr,)

    def update(
        self, tensor: Tensor, gradient: Tensor, decayed: Tensor | None, buffers: Buffers, coefficients: Sequence[Number], importance: bool
    ) -> Tensor | None:
        """Change a tensor and its buffers in place; `decayed` is 1 where weight decay acts. Returns the step's importance if asked."""
        (lr,) = coefficients
        if self.plain and isinstance(lr, float):
            tensor.sub_(gradient, alpha=lr)
            return gradient.square_().mul_(lr) if importance else None
        direction = gradient if decayed is None or not self.weight_decay else gradient + self.weight_decay * (tensor * decayed)
        for momentum in buffers:
            momentum.mul_(self.momentum).add_(direction)
            direction = direction + self.momentum * momentum if self.nesterov else momentum
        change = direction * lr
        tensor.sub_(change)
        return change.mul_(gradient).abs_() if importance else None

    def update_together(
        self, tensors: list[Tensor], gradients: list[Tensor], decayed: list[Tensor | None], buffers: Sequence[Buffers], lr: Number
    ) -> None:
        """`update` for several tensors in a few kernels, without importances."""
        at = [i for i, mask in enumerate(decayed) if mask is not None]
        if self.weight_decay and at:
            own = torch._foreach_mul([tensors[i] for i in at], [mask for mask in decayed if mask is not None])
            torch._foreach_add_([gradients[i] for i in at], own, alpha=self.weight_decay)
        changes: list[Tensor] | tuple[Tensor, ...] = gradients
        if self.momentum:
            momenta = [momentum for (momentum,) in buffers]
            torch._foreach_mul_(momenta, self.momentum)
            torch._foreach_add_(momenta, gradients)
            changes = torch._foreach_add(gradients, momenta, alpha=self.momentum) if self.nesterov else momenta
        rate = lr.to(tensors[0].dtype) if isinstance(lr, Tensor) else lr
        torch._foreach_sub_(tensors, torch._foreach_mul(changes, rate))


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019), as PyTorch defines it."""

    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    epsilon: float = 1e-8

    plain = False
    buffers = ("mean", "square")

    def coefficients(self, lr: float, step: int) -> tuple[float, ...]:
        """The rate, the rate over the bias correction of the mean, and the root of the bias correction of the squares."""
        return lr, lr / (1 - self.beta1**step), (1 - self.beta2**step) ** 0.5

    def update(
        self, tensor: Tensor, gradient: Tensor, decayed: Tensor | None, buffers: Buffers, coefficients: Sequence[Number], importance: bool
    ) -> Tensor | None:
        """See `SGD.update`."""
        lr, corrected_lr, root = coefficients
        mean, square = buffers
        mean.lerp_(gradient, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        change = mean / (square.sqrt().div_(root).add_(self.epsilon)) * corrected_lr
        if decayed is not None and self.weight_decay:
            change += tensor * decayed * (lr * self.weight_decay)
        tensor.sub_(change)
        return change.mul_(gradient).abs_() if importance else None


Optimiser = SGD | AdamW


def zero_buffers(optimiser: Optimiser, parameters: Named) -> Named:
    """An optimiser's buffers for these parameters, by BUFFER/PARAMETER."""
    return {
        f"{buffer}/{name}": torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        for buffer in optimiser.buffers
        for name, tensor in parameters.items()
    }


def reset_optimiser(state: Named) -> None:
    """Set all buffers to 0."""
    for tensor in state.values():
        tensor.zero_()


def drop_state(learner: Learner, task: int) -> None:
    """Clear the state of connections that the task no longer owns."""
    for name, tensor in learner.optimiser_state.items():
        _, kind, number = name.split("/")
        if kind == "weight":
            tensor.masked_fill_(~learner.ledger.owned_by(int(number), task), 0.0)


def buffers_of(state: Named, optimiser: Optimiser, name: str) -> list[Tensor]:
    """The buffers of a parameter, in the optimiser's order."""
    return [state[f"{buffer}/{name}"] for buffer in optimiser.buffers]
