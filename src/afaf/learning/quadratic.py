"""Quadratic penalties: springs that hold parameters at an anchor, each as stiff as the parameter is important.

As a term of the loss, or, since a stiff spring makes plain SGD overshoot, as a proximal step after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from afaf.learning.named import Named, protected
from afaf.learning.plan import Loss, Step
from afaf.network.forward import Parameters

Term = tuple[Named, Named]  # importance and anchor of each protected parameter


def quadratic_penalty(strength: float, importance: Named, anchor: Named) -> Loss:
    """strength / 2 x the sum over the protected parameters of importance x (parameter - anchor)^2."""

    def loss(step: Step) -> Tensor:
        held = protected(step.parameters)
        return strength / 2 * torch.stack([(importance[name] * (held[name] - anchor[name]).square()).sum() for name in importance]).sum()

    return loss


def proximal_step(strength: float, importance: Named, anchor: Named) -> Callable[[Parameters, float], None]:
    """The same penalty, applied after each step in closed form: w <- argmin over v of (v - w)^2 / (2 lr) + penalty(v).

    That is w <- w + a / (1 + a) (anchor - w) with a = lr x strength x importance: never past the anchor, however strong.
    """

    def after_step(parameters: Parameters, lr: float) -> None:
        for name, tensor in protected(parameters).items():
            pull = lr * strength * importance[name]
            tensor.lerp_(anchor[name], pull / (1 + pull))

    return after_step


def merged(terms: Sequence[Term]) -> Term:
    """The one term that several add up to: a sum of quadratics is a quadratic, and a constant."""
    if len(terms) == 1:
        return terms[0]
    importance = {name: torch.stack([term[name] for term, _ in terms]).sum(0) for name in terms[0][0]}
    pull = {name: torch.stack([term[name] * anchor[name] for term, anchor in terms]).sum(0) for name in importance}
    latest = terms[-1][1]
    return importance, {name: torch.where(importance[name] > 0, pull[name] / importance[name], latest[name]) for name in importance}


def overshoot(lr: float, strength: float, importance: Named) -> float:
    """A gradient step multiplies the distance d to the anchor by 1 - a, with a = lr x strength x importance: the largest a there is.

    Beyond 2 that distance grows with every step, whatever the rest of the loss does.
    """
    return lr * strength * max(float(tensor.max()) for tensor in importance.values())
