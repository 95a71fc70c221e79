"""Trains one task: the only place where a method's plans meet an engine, for runs and for models that keep learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from afaf.methods.base import Method, TaskContext
from afaf.runs.progress import Position
from afaf.training.engines import Engine
from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan
from afaf.training.report import OnEpoch


def train_task(
    learner: Learner,
    method: Method[Any],
    engine: Engine,
    context: TaskContext,
    after_epoch: Callable[[LearningPlan], OnEpoch],
    position: Position | None = None,
    adjust: Callable[[LearningPlan], None] | None = None,
) -> None:
    """Learn a task, or the rest of it after a position; `adjust` may change each plan."""
    position = position or Position()
    if not position.begun:
        learner.begin(context.task, context.classes)
    for phase in range(position.phase, method.phases):
        resumed = position.begun and phase == position.phase
        if not resumed:
            method.start(learner, context, phase)
        plan = method.plan(learner, context, phase)
        plan.held_out = context.held_out
        if adjust is not None:
            adjust(plan)
        plan.check(learner)
        engine.learn(learner, plan, context.data, after_epoch(plan), position.epochs if resumed else 0)
    method.finish(learner, context)
    learner.end(context.task, remember=not method.strict)
