"""Forward transfer by copying: a task's new connections begin with the values that an earlier task has learned.

Of the neurons that the task drew in a group, those that no other task uses begin as copies: the k-th of them gets the values of the k-th
neuron that the earlier task drew there. A neuron that another task uses keeps its values. The copies then train like all else of the new
task; nothing that earlier tasks use is overwritten.

From the first connection into the last hidden layer on (in a residual network its last stage), values are initial ones: neurons there
respond to the earlier task's classes, and copies of them would still do so after the new task is learned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from afaf.network.ledger import Allocation, Ledger
from afaf.network.net import Network
from afaf.network.spec import NetworkSpec


def start_from_previous(network: Network, ledger: Ledger, record: Allocation) -> None:
    """Copy weights, biases and norms to a sub-network just allocated, from that of the latest earlier task that still owns connections.

    Connections without a counterpart in other tasks' sub-networks keep their initial values.
    """
    earlier = [r for r in ledger.records if r.task < record.task and _owns_any(ledger, r.task)]
    if not earlier:
        return
    spec, parameters, source, end = network.spec, network.parameters, max(earlier, key=lambda r: r.task), first_not_copied(network.spec)
    used = _used_by_others(spec, ledger, record.task)
    copied = {s: _copied(used[s], source.free.get(s), record.free.get(s)).to(network.device) for s in spec.groups}
    for l in range(record.l_reuse, end):
        edge, owner, weight, bias = spec.edge(l), ledger.owner(l), network.weight(l), network.bias(l)
        rows, columns = copied[edge.target_group], edge.columns(copied[edge.source_group])
        of_others = (owner[rows][:, columns] > 0) & (owner[rows][:, columns] != record.task)
        weight.copy_(torch.where((owner == record.task) & of_others, weight[rows][:, columns], weight))
        bias.copy_(bias[rows])
    for layer in (number for number in spec.normed_layers if number < spec.edge(end).target):
        for tensor in parameters.norms[layer].tensors().values():
            tensor.copy_(tensor[copied[spec.layer(layer).group]])


def first_not_copied(spec: NetworkSpec) -> int:
    """The first W_l that leads into the last hidden layer's group."""
    return next(l for l in spec.edge_numbers if spec.edge(l).target_group == spec.last_hidden)


def _owns_any(ledger: Ledger, task: int) -> bool:
    """Whether a task still owns connections into neurons: not after all of its classes were removed."""
    return any(bool((owner == task).any()) for owner in ledger.owners[:-1])


def _used_by_others(spec: NetworkSpec, ledger: Ledger, task: int) -> dict[int, Tensor]:
    """For each group, the neurons that have connections of other tasks."""
    used = {s: torch.zeros(spec.layer(s).size, dtype=torch.bool) for s in spec.groups}
    for l, edge in enumerate(spec.edges, 1):
        of_others = ((ledger.owner(l) > 0) & (ledger.owner(l) != task)).any(2).cpu()
        used[edge.target_group] |= of_others.any(1)
        if not edge.diagonal:
            used[edge.source_group] |= of_others.any(0)
    return used


def _copied(used: Tensor, of_source: Tensor | None, of_target: Tensor | None) -> Tensor:
    """For each neuron of a group, the one whose values it gets: its own, unless both tasks drew neurons here and no other task uses it."""
    copied = torch.arange(len(used))
    if of_source is not None and of_target is not None:
        new = of_target[~used[of_target]]
        n = min(len(of_source), len(new))
        copied[new[:n]] = of_source[:n]
    return copied
