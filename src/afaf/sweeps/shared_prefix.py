"""Runs that differ only in options without effect before some task learn the tasks before it once.

A method names these options (`Method.late_options`). The first such run keeps its state after the shared tasks; the others start from it,
with the same bits as if each had learned those tasks itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from afaf.methods.base import Method
from afaf.runs.config import Config
from afaf.runs.progress import RunState


@dataclass(frozen=True)
class SharedPrefix:
    """The first tasks of a run, and a key of everything that they depend on."""

    tasks: int
    key: str


def shared_prefix(method: Method[Any], config: Config, stream: str, n_tasks: int, seed: int) -> SharedPrefix | None:
    """The prefix that a run may share with others; None if every option of its method has an effect from the first task on."""
    task, late = method.late_options()
    tasks = min(task - 1, n_tasks)
    if not late or tasks < 1:
        return None
    table = config.to_dict()
    table["method"] = {name: value for name, value in table["method"].items() if name not in late}
    return SharedPrefix(tasks, json.dumps([stream, method.name, seed, table], sort_keys=True, default=str))


class PrefixStates:
    """The states after shared prefixes, kept while a run that has not started needs them. Safe to use from several threads."""

    def __init__(self, needed: Callable[[SharedPrefix], bool]):
        self._needed = needed
        self._states: dict[SharedPrefix, RunState] = {}
        self._lock = threading.Lock()

    def __contains__(self, prefix: SharedPrefix) -> bool:
        with self._lock:
            return prefix in self._states

    def take(self, prefix: SharedPrefix) -> RunState | None:
        """The state for a run that starts now and so no longer counts as needing it; None if no run has learned the prefix."""
        with self._lock:
            state = self._states.get(prefix)
            if not self._needed(prefix):
                self._states.pop(prefix, None)
            return state

    def put(self, prefix: SharedPrefix, state: RunState) -> None:
        with self._lock:
            if self._needed(prefix):
                self._states.setdefault(prefix, state)
