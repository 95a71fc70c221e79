"""Joint training: all classes at once, which a continual learner may not do. The upper bound."""

from __future__ import annotations

from afaf.methods.dense import DenseMethod, DenseOptions


class Joint(DenseMethod[DenseOptions]):
    name = "joint"
    summary = "trains all weights on all tasks together (upper bound; not a continual learner)"
    Options = DenseOptions

    def task_groups(self, n_tasks: int) -> list[tuple[int, ...]]:
        return [tuple(range(1, n_tasks + 1))]
