"""Runs that differ only in options without effect before some task learn the tasks before it once.

A method names these options (`Method.late_options`). The first such run keeps its state after the shared tasks; the others start from it,
with the same bits as if each had learned those tasks itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from afaf.methods.base import Method
from afaf.runs.config import Config


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
