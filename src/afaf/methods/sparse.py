"""What methods share that give each task a sparse sub-network: how large one is, and whether all of them fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from afaf.costing.sparse import SparseCosts
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
        drawn = [self.free_in_last_hidden(task, size.alloc[spec.L - 1]) for task, size in zip(tasks, all_sizes, strict=True)]
        check_capacity(spec, all_sizes, [self.first_new(spec, task) for task in tasks], drawn, self.options.orthogonal_output)

    def free_in_last_hidden(self, task: int, alloc: int) -> int:
        """How many of a task's neurons in the last hidden layer are free ones."""
        return alloc

    def sizes_of(self, spec: NetworkSpec, task: int, n_classes: int) -> Sizes:
        """How large the sub-network of a task is that brings so many classes."""
        sparse = self.settings.sparse
        fixed = sparse.fixed
        if not self.options.orthogonal_output and "fc" in fixed and fixed.get("output") == 100:
            fixed = {**fixed, "output": fixed["fc"]}
        return sizes(spec, sparse.alloc, sparse.density, fixed, task, n_classes)

    def room(self, learner: Learner, task: int, n_classes: int) -> int:
        """From the free neurons of the last hidden layer and the unowned pairs below; pairs into that layer are always new."""
        ledger, spec, first = learner.ledger, learner.network.spec, task
        last_hidden = spec.L - 1
        free = len(ledger.free_neurons(last_hidden))
        unowned = {l: int((ledger.owner(l) == 0).all(2).sum()) for l in range(1, last_hidden - 1)}
        while True:
            asked = self.sizes_of(spec, task, n_classes)
            free -= max(1, asked.alloc[last_hidden])
            for l in range(self.first_new(spec, task), last_hidden - 1):
                unowned[l] -= asked.connections[l]
            if free < 0 or any(left < 0 for left in unowned.values()):
                return task - first
            task += 1
