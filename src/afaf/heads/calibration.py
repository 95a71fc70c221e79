"""Probabilities, and a threshold for "none of these", from held-out images that are not kept.

Their sums give a Gaussian for each class, with one covariance. Draws from it give held-out logits and distances at any time, however the
head has changed since. Real images have heavier tails: so for each call the losses and distances of its own held-out images are noted, by
class, at multiples of the temperature and of the threshold that the Gaussians give, and the best multiple is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.heads.lda import shrunk_factor
from afaf.heads.sums import Linear, Sums, exact
from afaf.randomness import generator

ENOUGH = 20  # held-out images, beyond one for each class, from which anything is calibrated
DRAWS = 512  # of each class, fewer if there are many classes
REJECTED = 0.05  # share of held-out images that the threshold calls unknown
MULTIPLES = torch.logspace(-1, 1.5, 51, dtype=torch.float64)  # of a temperature
FAR = torch.logspace(-1, 1, 81, dtype=torch.float64)  # edges of a histogram of distances, in units of the threshold
NOTED = len(MULTIPLES) + len(FAR) + 2  # numbers noted of a class: images, losses, histogram
JITTER = 1e-9  # of the mean variance: a covariance of few images is singular


@dataclass(frozen=True)
class Draws:
    """Deviations from a class mean as held-out images show them, and the classes that have such images."""

    deviations: Tensor  # (draws, d)
    means: Tensor  # (classes, d)
    rows: Tensor  # the classes' numbers

    @classmethod
    def of(cls, held: Sums) -> Draws | None:
        """None if too few images were held out."""
        rows = (held.counts > 0).nonzero()[:, 0]
        if len(rows) < 2 or held.images - len(rows) < ENOUGH:
            return None
        count = int(max(8, min(DRAWS, 4_000_000 // (len(rows) * held.classes))))
        within = held.within()
        within.diagonal().add_(JITTER * within.diagonal().mean())
        noise = torch.randn(count, held.features, generator=generator(0, "calibration", held.features), dtype=torch.float64)
        return cls(noise @ torch.linalg.cholesky_ex(within).L.T, held.means[rows], rows)


def fitted_temperature(head: Linear, draws: Draws) -> float:
    """The temperature at which held-out labels are likeliest, every class counting the same. The head must not have learned them."""
    answered = torch.isfinite(head.bias)
    keep = answered[draws.rows]
    if int(keep.sum()) < 2:
        return 1.0
    weights, bias = head.weights[answered], head.bias[answered]
    logits = (draws.means[keep] @ weights.T + bias)[:, None] + (draws.deviations @ weights.T)[None]
    target = (answered.cumsum(0) - 1)[draws.rows[keep]].repeat_interleave(len(draws.deviations))
    return _minimum(lambda log_t: float(F.cross_entropy(logits.flatten(0, 1) / 10**log_t, target)))


def answered_shares(head: Linear, draws: Draws) -> Tensor:
    """(classes, classes): the share of a class's draws that the head answers with each class. The head must not have learned them."""
    classes = len(head.bias)
    shares = torch.zeros(classes, classes, dtype=torch.float64)
    for row, mean in zip(draws.rows.tolist(), draws.means, strict=True):
        answers = head(mean + draws.deviations).argmax(1)
        shares[row] = torch.bincount(answers, minlength=classes).double() / len(answers)
    return shares


class Distance:
    """How far an image is from the nearest class mean, in units of the spread within classes (Mahalanobis, with LDA's covariance)."""

    def __init__(self, sums: Sums):
        self.factor = shrunk_factor(sums)
        self.present = sums.counts > 0
        self.means = self._whitened(sums.means[self.present])

    def __call__(self, features: Tensor) -> Tensor:
        """(n,): squared, divided by the number of features."""
        return self.to_each(features).amin(1)

    def to_each(self, features: Tensor) -> Tensor:
        """(n, classes): the distance from each class; inf for a class without images."""
        x = self._whitened(exact(features))
        found = x.new_full((len(x), len(self.present)), torch.inf)
        found[:, self.present] = torch.cdist(x, self.means, compute_mode="donot_use_mm_for_euclid_dist").square() / x.shape[1]
        return found

    def threshold(self, draws: Draws) -> float:
        """The distance that 5 % of held-out images exceed."""
        moved = draws.deviations[: max(8, 4096 // len(draws.rows))]
        x = (draws.means[:, None] + moved[None]).flatten(0, 1)
        return float(self(x).quantile(1 - REJECTED))

    def _whitened(self, x: Tensor) -> Tensor:
        whitened: Tensor = torch.linalg.solve_triangular(self.factor, x.T, upper=False).T
        return whitened


def noted(logits: Tensor, target: Tensor, distances: Tensor, temperature: float, threshold: float, classes: int) -> Tensor:
    """(classes, NOTED): the sums over held-out images of what is noted of them. Logits are those of all classes."""
    losses = [F.cross_entropy(logits / (temperature * multiple), target, reduction="none") for multiple in MULTIPLES.tolist()]
    far = F.one_hot(torch.bucketize(distances / threshold, FAR), len(FAR) + 1).double()
    rows = torch.cat([torch.ones(len(target), 1, dtype=torch.float64), torch.stack(losses, 1), far], 1)
    return torch.zeros(classes, NOTED, dtype=torch.float64).index_add_(0, target, rows)


def best_multiples(notes: Tensor) -> tuple[float, float]:
    """Of the temperature and of the threshold, every class with held-out images counting the same; 1 if nothing was noted."""
    means = notes[notes[:, 0] > 0] / notes[notes[:, 0] > 0, :1]
    if not len(means):
        return 1.0, 1.0
    losses, far = means[:, 1 : 1 + len(MULTIPLES)].mean(0), means[:, 1 + len(MULTIPLES) :].mean(0)
    place = int((far.cumsum(0) < 1 - REJECTED).sum())
    return float(MULTIPLES[losses.argmin()]), float(FAR[min(place, len(FAR) - 1)])


def _minimum(loss: Callable[[float], float], low: float = -3.0, high: float = 3.0) -> float:
    """10 to the power at which a function of one minimum is least, by golden-section search."""
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
