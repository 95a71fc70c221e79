"""Parts of EWC and MAS: their options, the terms they keep, and an error if the penalty would make plain SGD diverge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from afaf.errors import DivergedError
from afaf.methods.strength import StrengthOptions
from afaf.training.named import Named, kept_tensors
from afaf.training.optimisers import SGD
from afaf.training.plan import LearningPlan
from afaf.training.quadratic import Term, overshoot

OUT_OF_HAND = 1000.0  # a larger importance does not occur with weights of ordinary size


@dataclass(frozen=True)
class PenaltyOptions(StrengthOptions):
    estimator: Literal["batch", "per-sample"] = "batch"  # batch: FACIL's, which the paper's strength belongs to; per-sample: textbook
    blend: Literal["half", "sum", "separate"] = "half"  # half: (old + new) / 2; sum; separate: each task its own term and anchor
    penalty: Literal["auto", "explicit", "proximal"] = "auto"  # a term of the loss, or after each step in closed form (cannot diverge);
    # auto: proximal with the tuned strength and while `afaf tune` looks for it, explicit otherwise


def refuse_overshoot(plan: LearningPlan, strength: float, importance: Named) -> None:
    """Raise DivergedError if each step of SGD on the penalty would overshoot further.

    With momentum larger steps are stable, and AdamW scales its own: there only a loss that is no longer finite tells.
    """
    if not isinstance(plan.optimiser, SGD) or plan.optimiser.momentum:
        return
    factor = overshoot(plan.lr, strength, importance)
    if factor <= 2:
        return
    why = f"the penalty makes task {plan.task} diverge: learn.lr x method.strength x the largest importance is {factor:.3g}, and "
    why += "beyond 2 each step overshoots further; "
    largest = factor / (plan.lr * strength)
    if largest > OUT_OF_HAND:
        raise DivergedError(f"{why}an importance of {largest:.3g} says that the network had all but diverged before: lower learn.lr")
    raise DivergedError(f"{why}set method.penalty=proximal, which cannot diverge, or method.strength below {strength * 2 / factor:.3g}")


def kept_terms(memory: Named) -> list[Term]:
    """Importance and anchor of each stored term, in order."""
    slots = sorted({int(name.split("/")[1]) for name in memory if name.startswith("importance/")})
    return [(kept_tensors(memory, f"importance/{slot}"), kept_tensors(memory, f"anchor/{slot}")) for slot in slots]
