"""Costs of methods that give each task a sparse sub-network."""

from __future__ import annotations

from afaf.costing.footprint import CostModel, Footprint, ledger_bytes, samples_of
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.subnets.sizes import Sizes


class SparseCosts(CostModel):
    """Weights are added task by task; below the first new layer nothing moves."""

    def first_new(self, spec: NetworkSpec, task: int) -> int:
        """The first W_l that gets new connections in this task."""
        return 1

    def sizes_of(self, spec: NetworkSpec, task: int, n_classes: int) -> Sizes:
        """The size of the sub-network of a task that brings so many classes."""
        raise NotImplementedError

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        prints = []
        owned = dict.fromkeys(spec.edge_numbers, 0)
        for task, n_classes in enumerate(outline.classes_per_task, 1):
            first = self.first_new(spec, task)
            asked = self.sizes_of(spec, task, n_classes).connections
            whole = first == 1  # with reuse the connections are drawn class by class, each class an equal whole number
            new = {l: asked[l] if whole else asked[l] // n_classes * n_classes for l in range(first, spec.E + 1)}
            moving = {l: count * spec.edge(l).block for l, count in new.items()}
            owned = {l: count + moving.get(l, 0) for l, count in owned.items()}
            prints.append(Footprint(samples_of(outline, (task,)), self.settings.learn.epochs, owned, moving, owned))
        return prints

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        return ledger_bytes(spec, self.unit)
