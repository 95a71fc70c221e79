"""What EWC and MAS share: every weight moves, held by a spring to where it was, each as stiff as the weight is important.

The penalty lies on everything but the output layer; gains and shifts of norms are parameters too. Importances of old and new tasks are
blended, or each task keeps a term of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from afaf.errors import ConfigError, DivergedError
from afaf.methods.base import Footprint, TaskContext, forward_work
from afaf.methods.strength import ADVICE, StrengthMethod, StrengthOptions
from afaf.network.ops import Size
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.training.learner import Learner
from afaf.training.named import Named, find, keep, protected
from afaf.training.parameter_importance import Measure, batch_importance, per_sample_importance
from afaf.training.plan import LearningPlan
from afaf.training.quadratic import QuadraticPenalty, Term, merged, overshoot
from afaf.training.task_data import RngScope


@dataclass(frozen=True)
class PenaltyOptions(StrengthOptions):
    estimator: Literal["batch", "per-sample"] = "batch"  # batch: FACIL's, which the paper's strength belongs to; per-sample: textbook
    blend: Literal["half", "sum", "separate"] = "half"  # half: (old + new) / 2; sum; separate: each task its own term and anchor
    penalty: Literal["auto", "explicit", "proximal"] = "auto"  # a term of the loss, or after each step in closed form (cannot diverge);
    # auto: proximal with the tuned strength and while `afaf tune` looks for it, explicit otherwise


OUT_OF_HAND = 1000.0  # an importance that no network has whose weights are of ordinary size
P = TypeVar("P", bound=PenaltyOptions)


class PenaltyMethod(StrengthMethod[P]):
    """strength / 2 x sum of importance x (parameter - anchor)^2; a subclass says of what the importance is measured."""

    size: ClassVar[Size]

    def measure(self, learner: Learner, context: TaskContext, columns: Tensor) -> Measure:
        """One number an image, of the outputs `columns`, whose gradients say how important a parameter is."""
        raise NotImplementedError

    def strength_name(self) -> str:
        if self.options.strength == "tuned" and self.options.estimator == "per-sample":
            return "tuned-per-sample"
        return super().strength_name()

    def tuned_with(self) -> dict[str, Any]:
        """A strength that was tuned is used in closed form unless told otherwise, so it is looked for in closed form."""
        return {"penalty": "proximal"} if self.options.penalty == "auto" else {}

    def late_options(self) -> tuple[int, frozenset[str]]:
        task, late = super().late_options()
        return task, late | {"penalty"}

    def check(self, spec: NetworkSpec, outline: Outline) -> None:
        super().check(spec, outline)
        if self.options.estimator == "per-sample" and self.options.strength == "paper":
            raise ConfigError(
                "the paper's strength belongs to method.estimator=batch; the per-sample estimate is many times larger: "
                "set method.strength=tuned or give a number"
            )

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        plan = super().plan(learner, context, phase)
        terms = kept_terms(learner.memory)
        if not terms or self.strength == 0:
            return plan
        importance, anchor = merged(terms)
        if self.options.penalty == "proximal" or (self.options.penalty == "auto" and self.options.strength == "tuned"):
            plan.penalty = QuadraticPenalty(self.strength, importance, anchor, proximal=True)
            return plan
        self._refuse_overshoot(plan, overshoot(plan.lr, self.strength, importance))
        plan.penalty = QuadraticPenalty(self.strength, importance, anchor)
        plan.if_diverging = f"{ADVICE}, or set method.penalty=proximal, which cannot diverge"
        return plan

    def finish(self, learner: Learner, context: TaskContext) -> None:
        new = self.estimate(learner, context)
        slot = context.task if self.options.blend == "separate" else 0
        old = find(learner.memory, f"importance/{slot}")
        if self.options.blend == "half":  # before the first task nothing is important: FACIL begins with zeros, and so halves the first
            new = {name: (tensor + old[name]) / 2 if old else tensor / 2 for name, tensor in new.items()}
        elif old:
            new = {name: tensor + old[name] for name, tensor in new.items()}
        keep(learner.memory, f"importance/{slot}", new)
        keep(learner.memory, f"anchor/{slot}", protected(learner.network.parameters))

    def estimate(self, learner: Learner, context: TaskContext) -> Named:
        """How important each parameter is to this lesson, among the outputs of all classes seen so far."""
        measure = self.measure(learner, context, torch.tensor(sorted(learner.seen_classes), device=learner.network.device))
        if self.options.estimator == "per-sample":
            return per_sample_importance(learner.network, context.data, measure, type(self).size)
        learn = self.settings.learn
        return batch_importance(
            learner.network,
            context.data,
            measure,
            type(self).size,
            batch_size=learn.batch_size,
            scope=RngScope(learner.seed, context.task, epoch=learn.epochs),
            norm_moves=self.options.norm_moves,
        )

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        """Estimating costs one more epoch; element-wise work, the penalty's as the step's, is not counted."""
        return [
            replace(footprint, extra_flops=3 * forward_work(spec, footprint.live) * footprint.samples)
            for footprint in super().footprints(spec, outline)
        ]

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        floats = sum(join.weights + join.outputs for join in spec.joins[:-1])
        floats += sum(2 * join.outputs for join in spec.joins if join.has_norm)
        terms = len(self.lessons(len(outline))) if self.options.blend == "separate" else 1
        return {"importance": 4 * floats * terms, "anchor": 4 * floats * terms}

    def _refuse_overshoot(self, plan: LearningPlan, factor: float) -> None:
        if factor <= 2:
            return
        why = f"the penalty makes task {plan.task} diverge: learn.lr x method.strength x the largest importance is {factor:.3g}, and "
        why += "beyond 2 each step overshoots further; "
        importance = factor / (plan.lr * self.strength)
        if importance > OUT_OF_HAND:
            raise DivergedError(f"{why}an importance of {importance:.3g} says that the network had all but diverged before: lower learn.lr")
        raise DivergedError(
            f"{why}set method.penalty=proximal, which cannot diverge, or method.strength below {self.strength * 2 / factor:.3g}"
        )


def kept_terms(memory: Named) -> list[Term]:
    """Importance and anchor of each term that was kept, in order."""
    slots = sorted({int(name.split("/")[1]) for name in memory if name.startswith("importance/")})
    return [(find(memory, f"importance/{slot}"), find(memory, f"anchor/{slot}")) for slot in slots]
