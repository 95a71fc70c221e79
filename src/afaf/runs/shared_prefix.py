"""Beginnings that runs share: runs that differ only in options which make no difference before some task learn what comes before it once.

A method says which options these are (`Method.late_options`). The first of such runs leaves how it stood then, and the others go on from
there, to the same bits they would have ended with: what is kept is what a checkpoint holds.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from afaf.methods.base import Method
from afaf.runs.config import Config
from afaf.runs.progress import Progress
from afaf.storage.state import Description, Named, build, describe, stored_tensors
from afaf.training.learner import Learner


@dataclass(frozen=True)
class Shared:
    """The lessons that a run has in common with others, and what it has in common with these."""

    lessons: int
    key: str


def shared_by(method: Method[Any], config: Config, stream: str, n_tasks: int, seed: int) -> Shared | None:
    """What a run may share with others; None if every option of its method matters from the first task on."""
    task, late = method.late_options()
    lessons = min(task - 1, n_tasks)
    if not late or lessons < 1:
        return None
    table = config.to_dict()
    table["method"] = {name: value for name, value in table["method"].items() if name not in late}
    return Shared(lessons, json.dumps([stream, method.name, seed, table], sort_keys=True, default=str))


@dataclass(frozen=True)
class Beginning:
    """How a run stood after the lessons it shares, in host memory."""

    lessons: int
    learner: dict[str, Any]
    tensors: Named
    progress: dict[str, Any]

    @classmethod
    def of(cls, lessons: int, learner: Learner, progress: Progress) -> Beginning:
        return cls(lessons, describe(learner), stored_tensors(learner), progress.to_dict())

    def again(self, n_tasks: int, device: torch.device) -> tuple[Learner, Progress]:
        """As often as one likes: what a run does with it does not come back here."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return build(Description.parse(self.learner), tensors, device), Progress.from_dict(copy.deepcopy(self.progress), n_tasks)


class Beginnings:
    """Those that are known and still wanted by a run that has not begun. Runs leave them, in any thread; who hands out runs takes them."""

    def __init__(self, wanted: Callable[[Shared], bool]):
        self._wanted = wanted
        self._known: dict[Shared, Beginning] = {}
        self._lock = threading.Lock()

    def __contains__(self, shared: Shared) -> bool:
        with self._lock:
            return shared in self._known

    def take(self, shared: Shared) -> Beginning | None:
        """For a run that is wanting no more, since it begins: what it shares, if some run has learned it."""
        with self._lock:
            beginning = self._known.get(shared)
            if not self._wanted(shared):
                self._known.pop(shared, None)
            return beginning

    def leave(self, shared: Shared, learner: Learner, progress: Progress) -> None:
        """For a run that has learned what it shares."""
        if not self._wanted(shared) or shared in self:
            return
        beginning = Beginning.of(shared.lessons, learner, progress)  # which takes a while: others need not wait for it
        with self._lock:
            if self._wanted(shared):
                self._known[shared] = beginning
