"""What methods share that give each task a sparse sub-network: how large one is, whether all of them fit, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from afaf.errors import ConfigError
from afaf.methods.base import Footprint, Method, ledger_bytes, samples_of
from afaf.network.ledger import Unit
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.subnets.capacity import check_capacity
from afaf.subnets.sizes import Sizes, check_percentage, sizes


@dataclass(frozen=True)
class SparseOptions:
    orthogonal_output: bool = True  # fix all of a task's neurons in the last hidden layer; off: the share of other dense layers


S = TypeVar("S", bound=SparseOptions)


class SparseMethod(Method[S]):
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

    def first_new(self, spec: NetworkSpec, task: int) -> int:
        """The first W_l that gets new connections in this task."""
        return 1

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

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        prints = []
        owned = dict.fromkeys(range(1, spec.L), 0)
        for task, n_classes in enumerate(outline.classes_per_task, 1):
            first = self.first_new(spec, task)
            asked = self.sizes_of(spec, task, n_classes).connections
            whole = first == 1  # with reuse the connections are drawn class by class, each class an equal whole number
            new = {l: asked[l] if whole else asked[l] // n_classes * n_classes for l in range(first, spec.L)}
            moving = {l: count * spec.connections(l).block for l, count in new.items()}
            owned = {l: count + moving.get(l, 0) for l, count in owned.items()}
            prints.append(Footprint(samples_of(outline, (task,)), self.settings.learn.epochs, owned, moving, owned))
        return prints

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        return ledger_bytes(spec, self.unit)
