"""Elastic Weight Consolidation (Kirkpatrick et al., PNAS 2017): a quadratic penalty on changes of parameters that old tasks depend on.

The loss of a task is cross-entropy + lambda/2 sum_i F_i (w_i - w*_i)^2, with w* the parameters after the last task and F the diagonal of
the Fisher information. Two estimators of it, with y the model's own answer to x (or the true or a sampled label) among the seen classes:

    batch       F = 1/N  sum over batches B  |B| ( 1/|B| sum over x in B of d log p(y|x) / dw )^2
    per-sample  F = 1/N  sum over images x       (                         d log p(y|x) / dw )^2

`batch` is FACIL's, with the augmentation and batch statistics of training; the paper's lambda of 5000 is for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from afaf.bounds import NotNegative
from afaf.methods.base import TaskContext
from afaf.methods.penalty import PenaltyOptions
from afaf.methods.regularised import PenaltyMethod
from afaf.randomness import key
from afaf.training.learner import Learner
from afaf.training.parameter_importance import Labels, Measure, negative_log_likelihood


@dataclass(frozen=True)
class EWCOptions(PenaltyOptions):
    strengths: dict[str, NotNegative] = field(default_factory=lambda: {"paper": 5000.0})
    labels: Labels = "model"  # y: the model's own answer, the true label, or a label drawn from the model's probabilities


class EWC(PenaltyMethod[EWCOptions]):
    name = "ewc"
    summary = "trains all weights, held to their old values in proportion to the Fisher information"
    Options = EWCOptions
    tradeoff_from = 10000.0
    size = torch.square

    def measure(self, learner: Learner, context: TaskContext, columns: Tensor) -> Measure:
        return negative_log_likelihood(columns, self.options.labels, key(learner.seed, "fisher labels", context.task))
