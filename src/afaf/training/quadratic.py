"""Quadratic penalties on the distance of parameters to an anchor, each weighted by the parameter's importance.

Either a term of the loss, or, since a strong penalty makes plain SGD overshoot, a proximal step after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from afaf.network.forward import Parameters
from afaf.training.named import Named, protected_parameters, weight_number

Term = tuple[Named, Named]  # importance and anchor of each protected parameter


@dataclass(frozen=True)
class QuadraticPenalty:
    """strength / 2 x the sum over the protected parameters of importance x (parameter - anchor)^2.

    `proximal`: not a term of the loss, but applied in closed form after each step, which cannot overshoot.
    """

    strength: float
    importance: Named
    anchor: Named
    proximal: bool = False

    def __call__(self, parameters: Parameters) -> Tensor:
        """The penalty as a term of the loss."""
        named = protected_parameters(parameters)
        terms = [(self.importance[name] * (named[name] - self.anchor[name]).square()).sum() for name in self.importance]
        return self.strength / 2 * torch.stack(terms).sum()

    def apply(self, parameters: Parameters, lr: float | Tensor) -> None:
        """The proximal step, in place: w <- argmin over v of (v - w)^2 / (2 lr) + penalty(v).

        That is w <- w + a / (1 + a) (anchor - w) with a = lr x strength x importance: never past the anchor, however strong.
        """
        named = protected_parameters(parameters)
        for name, importance in self.importance.items():
            pull = lr * self.strength * importance
            named[name].lerp_(self.anchor[name], pull / (1 + pull))

    def laid_out(self, lay_out: Callable[[int, Tensor], Tensor]) -> QuadraticPenalty:
        """The same penalty with the tensors of weights in an engine's memory layout."""

        def weights(named: Named) -> Named:
            return {name: tensor if (l := weight_number(name)) is None else lay_out(l, tensor) for name, tensor in named.items()}

        return replace(self, importance=weights(self.importance), anchor=weights(self.anchor))

    @property
    def on_weights(self) -> bool:
        """Whether it acts on any weight, and not on biases and norms alone."""
        return any(weight_number(name) is not None for name in self.importance)

    def only(self, wanted: Callable[[str], bool]) -> QuadraticPenalty | None:
        """The penalty on the parameters with wanted names; None if there are none."""
        importance, anchor = ({name: t for name, t in part.items() if wanted(name)} for part in (self.importance, self.anchor))
        return replace(self, importance=importance, anchor=anchor) if importance else None


def merged(terms: Sequence[Term]) -> Term:
    """The single term equal to the sum of several: a sum of quadratics is a quadratic plus a constant."""
    if len(terms) == 1:
        return terms[0]
    importance = {name: torch.stack([term[name] for term, _ in terms]).sum(0) for name in terms[0][0]}
    pull = {name: torch.stack([term[name] * anchor[name] for term, anchor in terms]).sum(0) for name in importance}
    latest = terms[-1][1]
    return importance, {name: torch.where(importance[name] > 0, pull[name] / importance[name], latest[name]) for name in importance}


def overshoot(lr: float, strength: float, importance: Named) -> float:
    """The largest a = lr x strength x importance: a gradient step multiplies the distance to the anchor by 1 - a.

    Above 2 that distance grows with every step, whatever the rest of the loss does.
    """
    return lr * strength * max(float(tensor.max()) for tensor in importance.values())
