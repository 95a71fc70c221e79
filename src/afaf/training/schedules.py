"""Learning-rate schedules as data: the rate of a step, from the base rate and the place of the step among all steps of a phase."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi


def epochs_until(share: float, epochs: int) -> int:
    """`share` percent of the epochs, rounded up."""
    return epochs - int(epochs * (100 - share) / 100)


@dataclass(frozen=True)
class Schedule:
    """The base of schedules."""

    per_step = True  # whether the rate changes within an epoch; if not, captured steps need not read it

    def rate(self, lr: float, epoch: int, epochs: int, step: int, steps: int) -> float:
        """The rate of step `step` of `steps` in this epoch; both count from 0."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Schedule):
    """The base rate throughout."""

    per_step = False

    def rate(self, lr: float, epoch: int, epochs: int, step: int, steps: int) -> float:
        return lr


@dataclass(frozen=True)
class StepDecay(Schedule):
    """The rate is divided after each of these shares of the epochs, in percent."""

    per_step = False
    at: tuple[float, ...] = (50.0, 75.0)
    divide_by: float = 10.0

    def rate(self, lr: float, epoch: int, epochs: int, step: int, steps: int) -> float:
        return lr / self.divide_by ** sum(epoch >= epochs_until(share, epochs) for share in self.at)


@dataclass(frozen=True)
class ReduceOnPlateau(Constant):
    """FACIL's schedule, with which the paper ran EWC, MAS and LwF; see `plateau`."""

    patience: int = 5  # epochs without a lower loss on held-out images before the rate is divided
    divide_by: float = 3.0
    lowest: float = 1e-4  # learning ends when the rate falls below


@dataclass(frozen=True)
class Cosine(Schedule):
    """From the base rate to 0 along half a cosine, step by step."""

    def rate(self, lr: float, epoch: int, epochs: int, step: int, steps: int) -> float:
        return lr * (1 + cos(pi * (epoch * steps + step) / (epochs * steps))) / 2


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up to the base rate and down again, each along half a cosine, step by step (Smith and Topin, 2018; PyTorch's OneCycleLR).

    Momentum is not cycled.
    """

    warmup: float = 30.0  # percent of the steps until the base rate is reached
    start: float = 25.0  # the first rate is the base rate divided by this,
    end: float = 1e4  # and the last one the first divided by this

    def rate(self, lr: float, epoch: int, epochs: int, step: int, steps: int) -> float:
        now, last, first_rate = epoch * steps + step, epochs * steps - 1, lr / self.start
        top = epochs * steps * self.warmup / 100 - 1
        if now <= top:
            return _along_cosine(first_rate, lr, now / top if top > 0 else 1.0)
        return _along_cosine(lr, first_rate / self.end, (now - top) / (last - top) if last > top else 1.0)


def _along_cosine(begin: float, end: float, share: float) -> float:
    return end + (begin - end) * (1 + cos(pi * share)) / 2
