"""How a lesson is learned: the one place where a method's plans meet an engine, for runs and for models that keep learning."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

from afaf.engine import Engine
from afaf.engine.report import OnEpoch
from afaf.learning.learner import Learner
from afaf.learning.plan import LearningPlan
from afaf.methods.base import Lesson, Method
from afaf.runs.progress import Position

_ONE_STARTS = threading.Lock()  # warnings are caught for the whole process: of runs side by side one allocates at a time


def learn_lesson(
    learner: Learner,
    method: Method[Any],
    engine: Engine,
    lesson: Lesson,
    after_epoch: Callable[[LearningPlan], OnEpoch],
    warn: Callable[[str], None],
    position: Position | None = None,
    adjust: Callable[[LearningPlan], None] | None = None,
) -> None:
    """Learn a lesson, or what is left of it after a position; `adjust` may put another loss into each plan."""
    position = position or Position()
    if not position.begun:
        learner.begin(lesson.task, lesson.classes)
    for phase in range(position.phase, method.phases):
        resumed = position.begun and phase == position.phase
        if not resumed:
            _start(learner, method, lesson, phase, warn)
        plan = method.plan(learner, lesson, phase)
        if adjust is not None:
            adjust(plan)
        plan.check(learner)
        engine.learn(learner, plan, lesson.feed, after_epoch(plan), position.epochs if resumed else 0)
    method.finish(learner, lesson)
    learner.end(lesson.task)


def _start(learner: Learner, method: Method[Any], lesson: Lesson, phase: int, warn: Callable[[str], None]) -> None:
    with _ONE_STARTS, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        method.start(learner, lesson, phase)
    for warning in caught:
        warn(str(warning.message))
