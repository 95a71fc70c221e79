"""Probabilities, and a threshold for "none of these", from sums over held-out images.

Held-out images show how far unseen images lie from the taught mean of their class: the second moment of their deviations follows from
sums. The temperature is fitted to random draws with that moment, so it is a function of the sums, like the head. Gaussian draws are
misclassified too rarely: classes differ in shape, and few images are far off. Student's t with 4 degrees of freedom comes close to the
temperature of the held-out images themselves. The temperature is fitted to a head that has not learned the held-out images, and
transferred, in units of their margins, to the head that has. With few held-out images it is shrunk towards a temperature that is typical
of all heads and numbers of images, in the same units (benchmarks/calibration.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.exact import exact
from afaf.heads.lda import shrunk_factor
from afaf.heads.sums import Linear, Sums
from afaf.randomness import generator

ENOUGH = 10  # with fewer held-out images there is no threshold for "none of these"
TYPICAL = 0.08  # temperature without any held-out image, in units of the mean margin between classes
WORTH = 10  # held-out images that the typical temperature counts for
DRAWS = 2048  # fewer if there are many classes
STRATUM = 64  # scales of draws are means of this many neighbouring sorted samples, so that few draws approximate the distribution
FREEDOM = 4  # degrees of freedom of Student's t
UNEVEN = 0.05  # relative variance of squared distances beyond that of a Gaussian: some images lie farther off in all directions
QUANTILE = 2.326  # 99 % of a normal distribution: future photographs differ more than held-out ones
JITTER = 1e-9  # relative to the mean variance: the second moment of few images is singular


@dataclass(frozen=True)
class Unseen:
    """How images that a head has not learned deviate from the means of its classes."""

    means: Tensor  # (k, d), taught
    held_means: Tensor  # (k, d), of held-out images; the taught ones if a class has none
    moment: Tensor  # (d, d), the mean of deviation deviation'
    images: float  # number of held-out images in the moment (degrees of freedom)

    @classmethod
    def of(cls, taught: Sums, held: Sums) -> Unseen | None:
        """None if no image was held out. Held-out images of a class that was not taught deviate from their own mean."""
        is_taught = taught.counts > 0
        freedom = torch.where(is_taught, held.counts, (held.counts - 1).clamp(min=0)).sum()
        if freedom < 1:
            return None
        means = torch.where(is_taught[:, None], taught.means, held.means)
        cross = held.totals.T @ means
        moment = (held.gram - cross - cross.T + (means.T * held.counts) @ means) / freedom
        return cls(means, torch.where(held.counts[:, None] > 0, held.means, means), (moment + moment.T) / 2, float(freedom))

    def temperature(self, head: Linear, freedom: int = FREEDOM) -> float:
        """The most likely temperature for the labels of unseen images, which the head must not have learned; classes count equally."""
        answered = torch.isfinite(head.bias)
        weights, bias, k = head.weights[answered], head.bias[answered], int(answered.sum())
        logits = (self.means[answered] @ weights.T + bias)[:, None] + (self._draws(k, freedom) @ weights.T)[None]
        target = torch.arange(k).repeat_interleave(logits.shape[1])
        return minimum(lambda log_t: float(F.cross_entropy(logits.flatten(0, 1) / 10**log_t, target)))

    def answered(self, head: Linear) -> Tensor:
        """(k, k): the share of unseen images of a class that the head, which must not have learned them, assigns to each class."""
        k, draws = len(head.bias), self._draws(len(head.bias), FREEDOM) @ head.weights.T
        answers = [(row + draws).argmax(1) for row in head(self.held_means)]
        return torch.stack([torch.bincount(row, minlength=k).double() / len(row) for row in answers])

    def _draws(self, classes: int, freedom: int) -> Tensor:
        """(draws, d), mirrored: the same for every class, so that the order of the classes does not matter."""
        count = max(32, min(DRAWS, 4_000_000 // classes**2) // 2)
        draw = generator(0, "calibration", len(self.moment))
        moment = self.moment.clone()
        moment.diagonal().add_(JITTER * moment.diagonal().mean())
        noise = torch.randn(count, len(moment), generator=draw, dtype=torch.float64) @ torch.linalg.cholesky_ex(moment).L.T
        squares = torch.randn(count * STRATUM, freedom, generator=draw, dtype=torch.float64).square().sum(1)
        noise *= ((freedom - 2) / squares.sort().values.reshape(count, STRATUM).mean(1)).sqrt()[:, None]
        return torch.cat([noise, -noise])


def temperature(head: Linear, means: Tensor, trial: Linear, unseen: Unseen | None) -> float:
    """The temperature of a head; `means` are of all images, and `trial` is the head without the held-out ones."""
    margin = mean_margin(head, means)
    if not margin > 0:  # a single class, or classes that are all the same
        return 1.0
    typical = log(TYPICAL * margin)
    of_trial = 0.0 if unseen is None else mean_margin(trial, unseen.means)
    if unseen is None or not of_trial > 0:
        return exp(typical)
    share = unseen.images / (unseen.images + WORTH)
    return exp(share * log(unseen.temperature(trial) * margin / of_trial) + (1 - share) * typical)


def mean_margin(head: Linear, means: Tensor) -> float:
    """By how much the logit of a class exceeds another's at the class's mean, averaged over pairs of classes."""
    answered = torch.isfinite(head.bias)
    logits = head(means)[answered][:, answered]
    return float((logits.diagonal()[:, None] - logits).sum() / max(1, len(logits) * (len(logits) - 1)))


class Distance:
    """How far an image is from the mean of each class, in units of the spread within classes (Mahalanobis, with LDA's covariance)."""

    def __init__(self, sums: Sums):
        self.factor = shrunk_factor(sums)
        self.present = sums.counts > 0
        self.means = self._whitened(sums.means[self.present])

    def to_each(self, features: Tensor) -> Tensor:
        """(n, classes): squared, divided by the number of features; inf for a class without images."""
        x = self._whitened(exact(features))
        found = x.new_full((len(x), len(self.present)), torch.inf)
        found[:, self.present] = torch.cdist(x, self.means, compute_mode="donot_use_mm_for_euclid_dist").square() / x.shape[1]
        return found

    def threshold(self, unseen: Unseen) -> float:
        """The distance beyond which an image is of no known class: about 1 % of unseen images of known classes are farther."""
        ratio = torch.cholesky_solve(unseen.moment, self.factor)
        total = ratio.diagonal().sum()
        variance = 2 * (ratio * ratio.T).sum() / total.square() + UNEVEN
        return float(total / len(ratio) * (1 + QUANTILE * variance.sqrt()))

    def _whitened(self, x: Tensor) -> Tensor:
        whitened: Tensor = torch.linalg.solve_triangular(self.factor, x.T, upper=False).T
        return whitened


def minimum(loss: Callable[[float], float], low: float = -3.0, high: float = 3.0) -> float:
    """10^x at the x that minimises a function with a single minimum, by golden-section search."""
    golden = (5**0.5 - 1) / 2
    a, b = high - golden * (high - low), low + golden * (high - low)
    loss_a, loss_b = loss(a), loss(b)
    for _ in range(24):
        if loss_a < loss_b:
            high, b, loss_b = b, a, loss_a
            a = high - golden * (high - low)
            loss_a = loss(a)
        else:
            low, a, loss_a = a, b, loss_b
            b = low + golden * (high - low)
            loss_b = loss(b)
    return float(10 ** ((low + high) / 2))
