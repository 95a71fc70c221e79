"""The engines: how a learning plan is carried out. All give the same results up to the order of floating-point sums."""

from __future__ import annotations

from typing import Literal, Protocol

from afaf.engine.compact import CompactEngine
from afaf.engine.eager import EagerEngine
from afaf.engine.report import OnEpoch
from afaf.learning.feed import Feed
from afaf.learning.learner import Learner
from afaf.learning.plan import LearningPlan

EngineName = Literal["auto", "eager", "compact"]


class Engine(Protocol):
    """Carries out a learning plan on a learner, reporting every epoch."""

    name: str

    def learn(self, learner: Learner, plan: LearningPlan, feed: Feed, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None: ...


def find_engine(name: EngineName) -> Engine:
    return EagerEngine() if name == "eager" else CompactEngine()
