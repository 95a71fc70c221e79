"""The base of EWC and MAS: all weights train, and a quadratic penalty pulls each towards its old value, in proportion to its importance.

The penalty covers all parameters but those of the output layer, including gains and shifts of norms.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from afaf.costing.kinds import PenaltyCosts
from afaf.errors import ConfigError
from afaf.methods.base import TaskContext
from afaf.methods.penalty import PenaltyOptions, kept_terms, refuse_overshoot
from afaf.methods.strength import ADVICE, StrengthMethod
from afaf.network.ops import Size
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.training.learner import Learner
from afaf.training.named import Named, keep_tensors, kept_tensors, protected_parameters
from afaf.training.parameter_importance import Measure, batch_importance, per_sample_importance
from afaf.training.plan import LearningPlan
from afaf.training.quadratic import QuadraticPenalty, merged
from afaf.training.task_data import RngScope

P = TypeVar("P", bound=PenaltyOptions)


class PenaltyMethod(PenaltyCosts, StrengthMethod[P]):
    """strength / 2 x sum of importance x (parameter - anchor)^2; a subclass defines the measure of importance."""

    size: ClassVar[Size]

    def measure(self, learner: Learner, context: TaskContext, columns: Tensor) -> Measure:
        """One number per image, from the outputs `columns`, whose gradients give the importance of parameters."""
        raise NotImplementedError

    def strength_name(self) -> str:
        if self.options.strength == "tuned" and self.options.estimator == "per-sample":
            return "tuned-per-sample"
        return super().strength_name()

    def tuned_with(self) -> dict[str, Any]:
        """A tuned strength is by default used with the closed form, so it is tuned with it."""
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
        refuse_overshoot(plan, self.strength, importance)
        plan.penalty = QuadraticPenalty(self.strength, importance, anchor)
        plan.if_diverging = f"{ADVICE}, or set method.penalty=proximal, which cannot diverge"
        return plan

    def finish(self, learner: Learner, context: TaskContext) -> None:
        new = self.estimate(learner, context)
        slot = context.task if self.options.blend == "separate" else 0
        old = kept_tensors(learner.memory, f"importance/{slot}")
        if self.options.blend == "half":  # FACIL begins with importances of 0, and so halves the first
            new = {name: (tensor + old[name]) / 2 if old else tensor / 2 for name, tensor in new.items()}
        elif old:
            new = {name: tensor + old[name] for name, tensor in new.items()}
        keep_tensors(learner.memory, f"importance/{slot}", new)
        keep_tensors(learner.memory, f"anchor/{slot}", protected_parameters(learner.network.parameters))

    def estimate(self, learner: Learner, context: TaskContext) -> Named:
        """How important each parameter is to this task, among the outputs of all classes seen so far."""
        measure = self.measure(learner, context, torch.tensor(sorted(learner.seen_rows), device=learner.network.device))
        measured = learner.network, context.data, measure, type(self).size
        if self.options.estimator == "per-sample":
            return per_sample_importance(*measured)
        learn = self.settings.learn
        scope = RngScope(learner.seed, context.task, epoch=learn.epochs)
        batch_size = learn.batch_size * context.data.rotations  # as it was learned: gradients cancel more in larger batches
        return batch_importance(*measured, batch_size=batch_size, scope=scope, norm_moves=self.options.norm_moves)
