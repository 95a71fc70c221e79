"""Check before a stream is learned whether neurons or connections are certain to run out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from afaf.errors import CapacityError
from afaf.network.spec import NetworkSpec
from afaf.subnets.sizes import Sizes


def check_capacity(
    spec: NetworkSpec,
    sizes: Sequence[Sizes],
    first_new: Sequence[int],
    reuses: Sequence[bool],
    free_drawn: Sequence[Mapping[int, int]],
    orthogonal_output: bool,
    strict: bool,
) -> None:
    """Refuse a stream in which a task is certain to find no free neuron in some layer, or no connection.

    Only neurons that a task is certain to fix are counted:
    - under strict isolation all free ones that it draws (`free_drawn`);
    - without reuse fixed_l;
    - with orthogonal output weights all that it draws in the last hidden layer.
    A task that reuses may fix fewer otherwise; the number is known only once it is learned.
    """
    left: dict[int, list[int]] = {}  # neurons a task can draw at most, by group and task
    for l in spec.hidden_groups:
        left[l] = []
        free = spec.layer(l).size
        for task, (size, first, reusing) in enumerate(zip(sizes, first_new, reuses, strict=True), 1):
            last_hidden = l == spec.last_hidden
            draws_free = not reusing or (first < spec.E and l in spec.groups_from(first))
            left[l].append(min(free, size.alloc[l]))
            if not draws_free:
                continue
            name = spec.layer(l).name
            if size.alloc[l] < 1:
                raise CapacityError(
                    f"task {task} gets no neuron of layer '{name}': sparse.alloc of {spec.layer(l).size} neurons rounds down to 0; "
                    "raise it, or network.width"
                )
            asked = free_drawn[task - 1][l]
            if free == 0 and asked > 0:
                raise CapacityError(
                    f"task {task} does not fit: layer '{name}' ({spec.layer(l).size} neurons) is certain to have no free neuron left, "
                    f"{asked} are asked for; lower sparse.fixed or sparse.alloc for '{name}', or use a larger network"
                )
            drawn = min(asked, free)
            if strict or (last_hidden and orthogonal_output):
                free -= drawn
            elif not reusing:
                free -= min(size.fixed[l], drawn)
    _check_pairs(spec, sizes, first_new, reuses, left)


def _check_pairs(
    spec: NetworkSpec, sizes: Sequence[Sizes], first_new: Sequence[int], reuses: Sequence[bool], left: dict[int, list[int]]
) -> None:
    """Refuse more connections than there are pairs: among the neurons a task without reuse can draw, or in the whole of W_l."""
    for l, edge in enumerate(spec.edges, 1):
        owned = 0
        for task, (size, first, reusing) in enumerate(zip(sizes, first_new, reuses, strict=True), 1):
            if l < first:
                continue
            asked, between = size.connections[l], " to ".join(spec.ends(l))
            if asked < (size.alloc[spec.L] if reusing else 1):  # a reusing task divides them among its classes
                few = "fewer connections than it has classes" if reusing else "no connection"
                raise CapacityError(
                    f"task {task} gets {few} in {edge.name} ({between}): raise sparse.density for it, sparse.alloc or network.width"
                )
            owned += asked
            pairs = edge.weights // edge.block - (owned - asked)
            if not reusing:
                drawn = {1: spec.layer(1).size, spec.L: size.alloc[spec.L]} | {s: counts[task - 1] for s, counts in left.items()}
                pairs = min(pairs, edge.pairs(drawn[edge.source_group], drawn[edge.target_group]))
            if asked > pairs:
                raise CapacityError(
                    f"task {task} does not fit: {edge.name} ({between}) is certain to have at most "
                    f"{pairs} unowned pairs left, {asked} connections are asked for; lower sparse.density for {edge.name} or sparse.alloc"
                )
