"""Learning without Forgetting (Li and Hoiem, ECCV 2016): while a task is learned, the old outputs are distilled from the old model.

The loss of a task is cross-entropy over its own outputs + lambda x cross-entropy from softmax(z_old(x) / T) to softmax(z(x) / T), both over
the outputs of all earlier classes: z_old are the logits of the model as it was before the task (the teacher, which never changes), z those
of the learner, and x the new task's images. There is no factor T^2 (Hinton et al.), as in FACIL, which the paper used.
"""

from __future__ import annotations

from dataclasses import dataclass

from afaf.bounds import Positive
from afaf.costing.kinds import DistillationCosts
from afaf.methods.base import TaskContext
from afaf.methods.strength import ADVICE, StrengthMethod, StrengthOptions
from afaf.training.learner import Learner
from afaf.training.losses import distillation, total
from afaf.training.named import as_parameters, keep_tensors, kept_tensors, state_dict
from afaf.training.plan import LearningPlan


@dataclass(frozen=True)
class LwFOptions(StrengthOptions):
    temperature: Positive = 2.0


class LwF(DistillationCosts, StrengthMethod[LwFOptions]):
    name = "lwf"
    summary = "trains all weights while the old outputs imitate the old model's answers"
    Options = LwFOptions
    tradeoff_from = 10.0

    def late_options(self) -> tuple[int, frozenset[str]]:
        task, late = super().late_options()
        return task, late | {"temperature"}

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        plan = super().plan(learner, context, phase)
        teacher = kept_tensors(learner.memory, "teacher")
        if not teacher or self.strength == 0:
            return plan
        earlier = tuple(sorted(set(learner.seen_rows) - set(context.classes)))
        parameters = as_parameters(teacher)
        spec = learner.network.spec.with_classes(len(parameters.biases[-1]))
        plan.loss = total(plan.loss, distillation(self.strength, spec, parameters, earlier, self.options.temperature))
        plan.if_diverging = ADVICE
        return plan

    def finish(self, learner: Learner, context: TaskContext) -> None:
        keep_tensors(learner.memory, "teacher", state_dict(learner.network.parameters))
