"""Isolated networks: a separate sparse network per task, with no shared neurons; a control that shows the result of perfect isolation.

All are in one ledger: a task draws `share` percent of the neurons of every hidden layer and fixes all of them, so that no later task
draws them; its connections are between them, from the input and to its own outputs. It learns like SpaceNet, with drop and grow, and may
have as many weights as SpaceNet's sub-network of that task under the same settings: the full output rows, and in every other W_l the same
density, the largest that stays within that number. If there are fewer pairs than that (sim-CIFAR10), it has them all.
Nothing that a task's outputs depend on moves once it is learned, so in task-IL nothing is forgotten: BWT is exactly 0.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from afaf.bounds import Percent
from afaf.errors import CapacityError
from afaf.methods.spacenet import SpaceNet, SpaceNetOptions
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.subnets.sizes import Sizes, share

PARTS = 1_000_000  # densities are chosen in parts per million


@dataclass(frozen=True)
class IsolatedOptions(SpaceNetOptions):
    share: Percent = 20.0  # of each hidden layer's neurons that belong to a task, in percent


class Isolated(SpaceNet[IsolatedOptions]):
    name = "isolated"
    summary = "gives each task a separate network of neurons of its own, as large as SpaceNet's sub-network (control)"
    Options = IsolatedOptions

    def check(self, spec: NetworkSpec, outline: Outline) -> None:
        if self.options.share * len(outline) > 100:
            raise CapacityError(
                f"method.share = {self.options.share}: {len(outline)} tasks need {self.options.share * len(outline):g} percent of each "
                f"layer's neurons; set it to {largest_share(len(outline)):g} or lower"
            )
        super().check(spec, outline)

    @property
    def strict(self) -> bool:
        """Always on: norms belong to neurons, and those of other tasks' neurons do not change."""
        return True

    def sizes_of(self, spec: NetworkSpec, task: int, n_classes: int) -> Sizes:
        """A share of each layer's neurons, all of them fixed afterwards, and as many connections as SpaceNet's number of weights allows."""
        blocks = {l: edge.block for l, edge in enumerate(spec.edges, 1)}
        budget = sum(count * blocks[l] for l, count in super().sizes_of(spec, task, n_classes).connections.items())
        hidden = {l: share(self.options.share, spec.layer(l).size) for l in spec.hidden_groups}
        alloc = {1: spec.layer(1).size, **hidden, spec.L: n_classes}
        pairs = {l: edge.pairs(alloc[edge.source_group], alloc[edge.target_group]) for l, edge in enumerate(spec.edges, 1)}

        def connections(parts: int) -> dict[int, int]:
            return {l: pairs[l] if l == spec.E else parts * pairs[l] // PARTS for l in pairs}

        def weights(parts: int) -> int:
            return sum(count * blocks[l] for l, count in connections(parts).items())

        density = max(0, bisect_right(range(PARTS + 1), budget, key=weights) - 1)  # the largest within the budget
        return Sizes(alloc, connections(density), hidden)


def largest_share(n_tasks: int) -> float:
    """The largest share of a layer, in percent, that each of this many tasks can have, rounded down to four digits."""
    return 100 * 10_000 // n_tasks / 10_000
