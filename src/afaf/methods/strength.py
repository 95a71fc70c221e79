"""The base of methods that train all weights with an extra loss term for old tasks, weighted by a strength (lambda).

The conventions are those of FACIL, which the paper used: cross-entropy over the current task's outputs, old output rows untouched, the
gradient's norm clipped at 10000.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeVar

from afaf.bounds import NotNegative, Positive
from afaf.errors import ConfigError
from afaf.methods.dense import DenseMethod, DenseOptions
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.training.losses import LossOver

ADVICE = "lower learn.lr or method.strength"


@dataclass(frozen=True)
class StrengthOptions(DenseOptions):
    loss_over: LossOver = "task"
    clip: Positive | None = 10000.0
    strength: NotNegative | Literal["paper", "tuned"] = "paper"  # lambda: a number, or one of `strengths` by its name
    strengths: dict[str, NotNegative] = field(default_factory=lambda: {"paper": 1.0})  # the paper's, and those `afaf tune` found


W = TypeVar("W", bound=StrengthOptions)


class StrengthMethod(DenseMethod[W]):
    """A dense method with a trade-off between old tasks and the new one."""

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
                    f"or find one with `afaf tune STREAM {self.name}`, other settings as here, and set "
                    f"method.strengths.{self.strength_name()}"
                )
            chosen = self.options.strengths[self.strength_name()]
        return chosen

    def late_options(self) -> tuple[int, frozenset[str]]:
        """The first task has no old tasks to protect."""
        return 2, frozenset({"strength", "strengths"})

    def check(self, spec: NetworkSpec, outline: Outline) -> None:
        super().check(spec, outline)
        _ = self.strength  # refuses an unknown name
