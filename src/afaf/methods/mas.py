"""Memory Aware Synapses (Aljundi et al., ECCV 2018): a penalty on changes of each parameter, in proportion to its influence on the output.

The loss of a task is cross-entropy + lambda/2 sum_i Omega_i (w_i - w*_i)^2, with w* the parameters after the last task. Two estimators of
Omega, with f(x) the outputs of the seen classes; no labels are needed:

    batch       Omega = 1/N  sum over batches B  |B| | 1/|B| sum over x in B of d ||f(x)|| / dw |
    per-sample  Omega = 1/N  sum over images x       |                         d ||f(x)|| / dw |

`batch` is FACIL's, with the augmentation and batch statistics of training; the paper's lambda of 1 is for it. MAS's own paper takes the
squared norm ||f(x)||^2 (`method.squared`) and the penalty without the half.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.methods.base import TaskContext
from afaf.methods.penalty import PenaltyOptions
from afaf.methods.regularised import PenaltyMethod
from afaf.training.learner import Learner
from afaf.training.parameter_importance import Measure, output_size


@dataclass(frozen=True)
class MASOptions(PenaltyOptions):
    squared: bool = False  # measure the squared norm of the output, as MAS's own paper does


class MAS(PenaltyMethod[MASOptions]):
    name = "mas"
    summary = "trains all weights, held to their old values in proportion to the output's sensitivity to them"
    Options = MASOptions
    tradeoff_from = 400.0
    size = torch.abs

    def measure(self, learner: Learner, context: TaskContext, columns: Tensor) -> Measure:
        return output_size(columns, squared=self.options.squared)
