"""Logits of classes from several views of an image: its rotations, and its mirror image.

Rotation self-labels: each class has four outputs, one for each rotation of its images by 90 degrees.

Output row 4 c + v stands for class c turned v times. A network that must also tell rotations learns more of what is in an image than
telling two classes takes, and answers less readily to images of other tasks. A class's logit is the mean over the rotations of an image of
the matching row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from afaf.methods.base import Predictor
from afaf.training.learner import Learner

ROTATIONS = 4
MIRRORED = "mirrored"  # in a learner's memory: 1 for classes that are answered with the mean over an image and its mirror image


def class_logits(predict: Predictor, learner: Learner) -> Predictor:
    """A function from images to logits of classes, given one to logits of output rows."""
    return over_mirror(_over_rotations(predict, learner.outputs_per_class), learner)


def over_mirror(answer: Predictor, learner: Learner) -> Predictor:
    """Average class scores over an image and its mirror image, for mirrored classes. `answer` may score only the classes learned so far."""
    mirrored = learner.memory.get(MIRRORED)
    if mirrored is None:
        return answer
    half = mirrored / 2

    def of_both(x: Tensor) -> Tensor:
        straight = answer(x)
        return straight + half[: straight.shape[1]].to(straight) * (answer(x.flip(3)) - straight)

    return of_both


def _over_rotations(predict: Predictor, per_class: int) -> Predictor:
    if per_class == 1:
        return predict

    def answer(x: Tensor) -> Tensor:
        turned = [predict(torch.rot90(x, v, (2, 3)))[:, v::per_class] for v in range(per_class)]
        return torch.stack(turned).mean(0)

    return answer
