"""The base of methods that give each task a sparse sub-network: its size, and whether all of them fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from afaf.costing.kinds import SparseCosts
from afaf.errors import ConfigError
from afaf.methods.base import Method
from afaf.network.ledger import Unit
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.subnets.capacity import check_capacity
from afaf.subnets.sizes import Sizes, check_percentage, sizes
from afaf.training.learner import Learner


@dataclass(frozen=True)
class SparseOptions:
    strict: bool = False  # strict isolation: fix all of a task's neurons and their norms, so that its logits never change
    orthogonal_output: bool = True  # fix all of a task's neurons in the last hidden layer; off: the share of other dense layers


S = TypeVar("S", bound=SparseOptions)


class SparseMethod(SparseCosts, Method[S]):
    """Sub-networks of the sizes that the section `sparse` of the settings asks for."""

    @property
    def unit(self) -> Unit:
        return self.settings.sparse.unit

    def check(self, spec: NetworkSpec, outline: Outline) -> None:
        sparse = self.settings.sparse
        for section in ("alloc", "density", "fixed"):
            check_percentage(getattr(sparse, section), f"sparse.{section}", spec)
        if self.options.orthogonal_output and sparse.fixed.get("output", 100) != 100:
            raise ConfigError(
                "sparse.fixed.output must be 100 while method.orthogonal_output is on, since all of a task's neurons in the last "
                "hidden layer are fixed then: leave it out, or set method.orthogonal_output=false"
            )
        tasks = range(1, len(outline) + 1)
        all_sizes = [self.sizes_of(spec, task, n) for task, n in zip(tasks, outline.classes_per_task, strict=True)]
        first_new, reuses = [self.first_new(spec, task) for task in tasks], [self.reuses(task) for task in tasks]
        drawn = [
            {s: self.free_drawn(spec, task, s, size.alloc[s]) for s in spec.hidden_groups}
            for task, size in zip(tasks, all_sizes, strict=True)
        ]
        check_capacity(spec, all_sizes, first_new, reuses, drawn, self.options.orthogonal_output, self.strict)

    def free_drawn(self, spec: NetworkSpec, task: int, group: int, alloc: int) -> int:
        """How many of the neurons that a task is allocated in a group are drawn from the free ones."""
        return alloc

    def sizes_of(self, spec: NetworkSpec, task: int, n_classes: int) -> Sizes:
        """The size of the sub-network of a task with this many classes."""
        sparse = self.settings.sparse
        fixed = sparse.fixed
        if not self.options.orthogonal_output and "fc" in fixed and fixed.get("output") == 100:
            fixed = {**fixed, "output": fixed["fc"]}
        asked = sizes(spec, sparse.alloc, sparse.density, fixed, task, n_classes)
        return replace(asked, fixed={s: asked.alloc[s] for s in spec.hidden_groups}) if self.strict else asked

    def first_neurons(self, spec: NetworkSpec, n_classes: int) -> dict[int, int]:
        return self.sizes_of(spec, 1, n_classes).alloc

    @property
    def strict(self) -> bool:
        return self.options.strict

    def room(self, learner: Learner, task: int, n_classes: int) -> int:
        """From the free neurons of the last hidden layer and the unowned pairs below; pairs into that layer are always new.

        A task that reuses may still be refused before it is trained: how many neurons and pairs it finds depends on its candidates.
        """
        ledger, spec, first = learner.ledger, learner.network.spec, task
        last_hidden = spec.last_hidden
        free = len(ledger.free_neurons(last_hidden))
        limited = [l for l, edge in enumerate(spec.edges, 1) if edge.target_group not in (last_hidden, spec.L)]
        unowned = {l: int((ledger.owner(l) == 0).all(2).sum()) for l in limited}
        while True:
            asked = self.sizes_of(spec, task, n_classes)
            free -= max(1, asked.alloc[last_hidden])
            for l in limited:
                unowned[l] -= asked.connections[l] if l >= self.first_new(spec, task) else 0
            if free < 0 or any(left < 0 for left in unowned.values()):
                return task - first
            task += 1
