"""Allocation of a task's sub-network: which neurons it may use, and which new connections it begins with.

There are two ways, which differ only in *where connections may be drawn*: from free neurons in every layer (SpaceNet, and AFAF before reuse
starts), or from l_reuse on, between each class's candidates and free neurons (AFAF, the paper's Algorithm 1). This module
only reads the ledger: nothing is written before the whole sub-network is known to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.errors import CapacityError
from afaf.network.ledger import Allocation, ClassAllocation, Ledger, Neurons
from afaf.network.spec import NetworkSpec
from afaf.randomness import generator
from afaf.subnets.sizes import Sizes, rest


@dataclass(frozen=True)
class Subnetwork:
    """An allocation and the places (flat indices into `ledger.owner(l)`) of its new connections."""

    record: Allocation
    places: dict[int, Tensor]


@dataclass(frozen=True)
class Request:
    """Everything an allocation depends on."""

    spec: NetworkSpec
    ledger: Ledger
    sizes: Sizes
    task: int
    classes: Sequence[int]
    seed: int
    warn: Callable[[str], None]  # called if a task gets fewer neurons than asked for

    def draw(self, *purpose: str | int) -> torch.Generator:
        return generator(self.seed, "allocate", self.task, *purpose)


def allocate_free(request: Request, among: Neurons | None = None) -> Subnetwork:
    """Without reuse: draw free neurons in every hidden layer (only from `among`, if given), then connections from the unowned pairs."""
    spec, sizes = request.spec, request.sizes
    not_among = {} if among is None else {l: _without(request.ledger.free_neurons(l).cpu(), among[l]) for l in among}
    free: Neurons = {}
    for s in spec.hidden_groups:
        free[s] = draw_free(request, s, sizes.alloc[s], not_among.get(s), free)
    record = Allocation.without_reuse(spec, request.task, free, request.classes)
    places = {
        l: draw_connections(request, l, record.sources(l), record.targets(l), sizes.connections[l], None, "all classes")
        for l in spec.edge_numbers
    }
    return Subnetwork(record, places)


def allocate_reusing(
    request: Request,
    candidates: Mapping[int, Neurons],
    *,
    l_reuse: int,
    candidate_share: float,
    candidates_in_last_hidden: bool = False,
) -> Subnetwork:
    """Algorithm 1: per class, W_l, l >= l_reuse, gets connections from candidates and free neurons to those of them that are not fixed.

    `candidates[c]` holds R_l^c for the groups that have candidates. With l_reuse = E (an ablation) only the output connections
    are new, and they start from the candidates alone.
    """
    spec, ledger = request.spec, request.ledger
    free = _free_beside_candidates(request, candidates, l_reuse, candidate_share, candidates_in_last_hidden)
    fixed = {l: torch.nonzero(ledger.is_fixed(l).cpu()).flatten() for l in spec.hidden_groups}
    pixels, nobody = torch.arange(spec.layer(1).size), torch.empty(0, dtype=torch.int64)
    classes, places = [], dict[int, Tensor]()
    for c in request.classes:
        sources: Neurons = {}
        targets: Neurons = {}
        for l in range(l_reuse, spec.E + 1):
            below, above = spec.edge(l).source_group, spec.edge(l).target_group
            sources[l] = _union(candidates[c].get(below, nobody), pixels if below == 1 else free.get(below, nobody))
            if l == spec.E:
                targets[l] = torch.tensor([c])
            else:
                targets[l] = _union(_without(candidates[c].get(above, nobody), fixed[above]), free[above])
            count = request.sizes.connections[l] // len(request.classes)
            drawn = draw_connections(request, l, sources[l], targets[l], count, places.get(l), f"class {c}")
            places[l] = torch.cat([places[l], drawn]) if l in places else drawn
        classes.append(ClassAllocation(c, dict(candidates[c]), sources, targets))
    return Subnetwork(Allocation(request.task, l_reuse, free, tuple(classes)), places)


def _free_beside_candidates(
    request: Request, candidates: Mapping[int, Neurons], l_reuse: int, candidate_share: float, in_last_hidden: bool
) -> Neurons:
    """S_l: free neurons drawn once for the task, without the first class's candidates."""
    spec = request.spec
    if l_reuse == spec.E:
        return {}
    first = candidates[request.classes[0]]
    free: Neurons = {}
    for l in spec.groups_from(l_reuse):
        alloc = request.sizes.alloc[l]
        all_free = l == spec.last_hidden and not in_last_hidden
        free[l] = draw_free(request, l, alloc if all_free else rest(candidate_share, alloc), first.get(l), free)
    return free


def draw_free(request: Request, l: int, count: int, excluding: Tensor | None = None, drawn: Neurons | None = None) -> Tensor:
    """Draw `count` free neurons of layer l: fewer, with a warning, if fewer are left; an error if none is left.

    `drawn` are the neurons drawn for other layers: a grouped convolution joins them only within its groups.
    """
    free = request.ledger.free_neurons(l).cpu()
    if excluding is not None:
        free = _without(free, excluding)
    name = request.spec.layer(l).name
    if len(free) == 0 and count > 0:
        raise CapacityError(
            f"task {request.task} does not fit: layer '{name}' has no free neuron left, {count} were asked for; "
            f"lower sparse.fixed or sparse.alloc for '{name}', or use a larger network"
        )
    if len(free) < count:
        request.warn(f"task {request.task}: layer '{name}' has {len(free)} free neurons, {count} were asked for; the task gets those")
    shuffled = free[torch.randperm(len(free), generator=request.draw("free neurons", l))]
    return torch.sort(_group_by_group(request.spec, l, shuffled, drawn or {})[:count]).values


def _group_by_group(spec: NetworkSpec, l: int, free: Tensor, drawn: Neurons) -> Tensor:
    """Reorder free neurons that a grouped convolution reads or writes: group by group, so that the first ones can be connected.

    The first groups are those in which most neurons were drawn at the other end of the convolution; of equal ones, those with more free
    neurons; of equal ones again, those with lower numbers.
    """
    edge = next((e for e in spec.edges if e.groups > 1 and l in (e.source_group, e.target_group)), None)
    if edge is None:
        return free
    other = edge.source_group if l == edge.target_group else edge.target_group
    group = free * edge.groups // spec.layer(l).size
    joined = drawn.get(other, free[:0]) * edge.groups // spec.layer(other).size
    beyond, here = (torch.bincount(part, minlength=edge.groups) for part in (joined, group))
    rank = (beyond * (len(free) + 1) + here) * edge.groups - torch.arange(edge.groups)
    return free[torch.sort(rank[group], descending=True, stable=True).indices]


def draw_connections(
    request: Request, l: int, sources: Tensor, targets: Tensor, count: int, already: Tensor | None, purpose: str
) -> Tensor:
    """Draw `count` connections of W_l, uniformly from the pairs (source, target) that no task owns and that are not drawn `already`.

    It is an error if fewer are left; in a grouped convolution the task gets those, with a warning.
    """
    edge, owner = request.spec.edge(l), request.ledger.owner(l).cpu()
    name, sources = edge.name, edge.columns(sources)
    unit = owner.shape[2]  # a single weight as unit: a connection stands for all the weights of its block
    flat = (targets[:, None, None] * owner.shape[1] + sources[None, :, None]) * unit + torch.arange(unit)
    unowned = flat[owner[targets][:, sources] == 0]
    if already is not None:
        unowned = unowned[~torch.isin(unowned, already)]
    if len(unowned) < count * unit:
        between = " to ".join(request.spec.ends(l))
        few = (
            f"{name} ({between}) has {len(unowned) // unit} unowned pairs left among the neurons selected for {purpose}, "
            f"{count} connections were asked for"
        )
        if edge.groups == 1 or not len(unowned):
            raise CapacityError(f"task {request.task} does not fit: {few}; lower sparse.density for {name} or sparse.alloc")
        request.warn(f"task {request.task}: {few}; the task gets those")  # its neurons may lie in different groups
    drawn = torch.randperm(len(unowned), generator=request.draw("connections", l, purpose))[: count * unit]
    return torch.sort(unowned[drawn]).values


def _union(a: Tensor, b: Tensor) -> Tensor:
    both: Tensor = torch.unique(torch.cat([a, b]))
    return both


def _without(a: Tensor, b: Tensor) -> Tensor:
    return a[~torch.isin(a, b)]
