"""Quadratic penalties: springs that hold parameters at an anchor, each as stiff as the parameter is important.

As a term of the loss, or, since a stiff spring makes plain SGD overshoot, as a proximal step after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from afaf.network.forward import Parameters
from afaf.training.named import Named, protected, weight_number
from afaf.training.plan import Step

Term = tuple[Named, Named]  # importance and anchor of each protected parameter


@dataclass(frozen=True)
class PenaltyTensors:
    """How strong, how stiff each (`importance`), and where they are fastened (`anchor`)."""

    strength: float
    importance: Named
    anchor: Named

    def laid_out(self, lay_out: Callable[[int, Tensor], Tensor]) -> Self:
        """The same springs with the tensors of weights laid out in memory as an engine has its own: then one passes over them in order."""

        def weights(named: Named) -> Named:
            return {name: tensor if (l := weight_number(name)) is None else lay_out(l, tensor) for name, tensor in named.items()}

        return replace(self, importance=weights(self.importance), anchor=weights(self.anchor))

    @property
    def on_weights(self) -> bool:
        """Whether any of them holds a weight."""
        return any(weight_number(name) is not None for name in self.importance)

    def only(self, wanted: Callable[[str], bool]) -> Self:
        """Those on parameters of some names."""
        return replace(self, importance=_chosen(self.importance, wanted), anchor=_chosen(self.anchor, wanted))


def _chosen(named: Named, wanted: Callable[[str], bool]) -> Named:
    return {name: tensor for name, tensor in named.items() if wanted(name)}


class QuadraticPenalty(PenaltyTensors):
    """A loss: strength / 2 x the sum over the protected parameters of importance x (parameter - anchor)^2."""

    def __call__(self, step: Step) -> Tensor:
        held = protected(step.parameters)
        terms = [(self.importance[name] * (held[name] - self.anchor[name]).square()).sum() for name in self.importance]
        return self.strength / 2 * torch.stack(terms).sum()


class ProximalStep(PenaltyTensors):
    """The same penalty, applied after each step in closed form: w <- argmin over v of (v - w)^2 / (2 lr) + penalty(v).

    That is w <- w + a / (1 + a) (anchor - w) with a = lr x strength x importance: never past the anchor, however strong.
    """

    def __call__(self, parameters: Parameters, lr: float) -> None:
        held = protected(parameters)
        for name, importance in self.importance.items():
            pull = lr * self.strength * importance
            held[name].lerp_(self.anchor[name], pull / (1 + pull))


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
