"""What methods share that let every weight move but hold on to the past with an extra term, weighted by a strength (lambda).

Conventions are FACIL's, with which the paper ran them: cross-entropy over the current task's outputs, old output rows untouched, the
gradient's norm clipped at 10000; a quadratic penalty on everything but the output layer (gains and shifts of norms are parameters too).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from afaf.errors import ConfigError, DivergedError
from afaf.learning.estimators import Measure, Size, batch_importance, per_sample_importance
from afaf.learning.feed import Moment
from afaf.learning.learner import Learner
from afaf.learning.losses import LossOver, proximal_step, quadratic_penalty, total
from afaf.learning.named import Named, find, keep, protected
from afaf.learning.plan import LearningPlan
from afaf.methods.base import Footprint, Lesson, forward_work
from afaf.methods.dense import DenseMethod, DenseOptions
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline

ADVICE = "lower learn.lr or method.strength"


@dataclass(frozen=True)
class StrengthOptions(DenseOptions):
    loss_over: LossOver = "task"
    clip: float | None = 10000.0
    strength: float | Literal["paper", "tuned"] = "paper"  # lambda: a number, or one of `strengths` by its name
    strengths: dict[str, float] = field(default_factory=lambda: {"paper": 1.0})  # the paper's, and those `afaf tune` found


W = TypeVar("W", bound=StrengthOptions)


class StrengthMethod(DenseMethod[W]):
    """A dense method with a trade-off between what was learned and what is to be learned."""

    tradeoff = "strength"

    def strength_name(self) -> str:
        return str(self.options.strength)

    @property
    def strength(self) -> float:
        """lambda as a number."""
        chosen = self.options.strength
        if isinstance(chosen, str):
            if self.strength_name() not in self.options.strengths:
                raise ConfigError(
                    f"no strength '{self.strength_name()}' is known for {self.name} on this stream: give method.strength a number, "
                    f"or find one with `afaf tune STREAM {self.name}` and set method.strengths.{self.strength_name()}"
                )
            chosen = self.options.strengths[self.strength_name()]
        return chosen

    def check(self, spec: NetworkSpec, outline: Outline) -> None:
        super().check(spec, outline)
        if not 0 <= self.strength < float("inf"):
            raise ConfigError(f"method.strength must be 0 or greater and finite, not {self.strength}")


@dataclass(frozen=True)
class PenaltyOptions(StrengthOptions):
    estimator: Literal["batch", "per-sample"] = "batch"  # batch: FACIL's, which the paper's strength belongs to; per-sample: textbook
    blend: Literal["half", "sum", "separate"] = "half"  # half: (old + new) / 2; sum; separate: each task its own term and anchor
    penalty: Literal["explicit", "proximal"] = "explicit"  # proximal: after each step in closed form, which cannot diverge


P = TypeVar("P", bound=PenaltyOptions)


class PenaltyMethod(StrengthMethod[P]):
    """strength / 2 x sum of importance x (parameter - anchor)^2; a subclass says of what the importance is measured."""

    size: ClassVar[Size]

    def measure(self, learner: Learner, lesson: Lesson, columns: Tensor) -> Measure:
        """One number an image, of the outputs `columns`, whose gradients say how important a parameter is."""
        raise NotImplementedError

    def strength_name(self) -> str:
        if self.options.strength == "tuned" and self.options.estimator == "per-sample":
            return "tuned-per-sample"
        return super().strength_name()

    def check(self, spec: NetworkSpec, outline: Outline) -> None:
        super().check(spec, outline)
        if self.options.estimator == "per-sample" and self.options.strength == "paper":
            raise ConfigError(
                "the paper's strength belongs to method.estimator=batch; the per-sample estimate is many times larger: "
                "set method.strength=tuned or give a number"
            )

    def plan(self, learner: Learner, lesson: Lesson, phase: int) -> LearningPlan:
        plan = super().plan(learner, lesson, phase)
        term = merged_term(learner.memory)
        if term is None or self.strength == 0:
            return plan
        if self.options.penalty == "proximal":
            plan.after_step = proximal_step(self.strength, *term)
            return plan
        refuse_overshoot(plan, self.strength, term[0])
        plan.loss = total(plan.loss, quadratic_penalty(self.strength, *term))
        plan.if_diverging = f"{ADVICE}, or set method.penalty=proximal, which cannot diverge"
        return plan

    def finish(self, learner: Learner, lesson: Lesson) -> None:
        new = self.estimate(learner, lesson)
        slot = lesson.task if self.options.blend == "separate" else 0
        old = find(learner.memory, f"importance/{slot}")
        if self.options.blend == "half":  # before the first task nothing is important: FACIL begins with zeros, and so halves the first
            new = {name: (tensor + old[name]) / 2 if old else tensor / 2 for name, tensor in new.items()}
        elif old:
            new = {name: tensor + old[name] for name, tensor in new.items()}
        keep(learner.memory, f"importance/{slot}", new)
        keep(learner.memory, f"anchor/{slot}", protected(learner.network.parameters))

    def estimate(self, learner: Learner, lesson: Lesson) -> Named:
        """How important each parameter is to this lesson, among the outputs of all classes seen so far."""
        measure = self.measure(learner, lesson, torch.tensor(sorted(learner.seen_classes), device=learner.network.device))
        if self.options.estimator == "per-sample":
            return per_sample_importance(learner.network, lesson.feed, measure, type(self).size)
        learn = self.settings.learn
        return batch_importance(
            learner.network,
            lesson.feed,
            measure,
            type(self).size,
            batch_size=learn.batch_size,
            moment=Moment(learner.seed, lesson.task, epoch=learn.epochs),
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
        floats += sum(2 * join.outputs for join in spec.joins if "norm" in join.then)
        terms = len(self.lessons(len(outline))) if self.options.blend == "separate" else 1
        return {"importance": 4 * floats * terms, "anchor": 4 * floats * terms}


def merged_term(memory: Named) -> tuple[Named, Named] | None:
    """Importance and anchor that the kept terms add up to: a sum of quadratics is one quadratic, and a constant."""
    slots = sorted({int(name.split("/")[1]) for name in memory if name.startswith("importance/")})
    if not slots:
        return None
    terms = [(find(memory, f"importance/{slot}"), find(memory, f"anchor/{slot}")) for slot in slots]
    if len(terms) == 1:
        return terms[0]
    importance = {name: torch.stack([term[name] for term, _ in terms]).sum(0) for name in terms[0][0]}
    pull = {name: torch.stack([term[name] * anchor[name] for term, anchor in terms]).sum(0) for name in importance}
    latest = terms[-1][1]
    return importance, {name: torch.where(importance[name] > 0, pull[name] / importance[name], latest[name]) for name in importance}


def refuse_overshoot(plan: LearningPlan, strength: float, importance: Named) -> None:
    """A gradient step on strength / 2 x importance x d^2 multiplies d by 1 - lr x strength x importance: beyond 2 it grows for ever."""
    largest = max(float(tensor.max()) for tensor in importance.values())
    if plan.lr * strength * largest > 2:
        raise DivergedError(
            f"the penalty makes task {plan.task} diverge: learn.lr x method.strength x the largest importance is "
            f"{plan.lr * strength * largest:.3g}, and beyond 2 each step overshoots further; set method.penalty=proximal, which cannot "
            f"diverge, or method.strength below {2 / (plan.lr * largest):.3g}"
        )
