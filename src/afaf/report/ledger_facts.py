"""Counts from the ledger of a learned model: owned connections, fixed neurons, candidates and reuse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from afaf.network.ledger import ABSENT, Ledger
from afaf.network.spec import NetworkSpec
from afaf.storage.model_file import Model

NOBODY = np.iinfo(np.int16).max  # after every task
UNUSED, USED = 0, -1  # origins of a candidate that no task has fixed: never used, or used and still free


@dataclass(frozen=True)
class OwnedLayer:
    """W_l by owner: connections (or weights) by task, and how many there are."""

    l: int
    name: str
    by_task: dict[int, int]
    total: int


@dataclass(frozen=True)
class LayerUse:
    """A hidden layer's neurons: fixed by each task, used but free, unused."""

    name: str
    fixed: dict[int, int]
    used: int
    total: int


@dataclass(frozen=True)
class Drawn:
    """A class's candidates in one layer, by origin: the task that had fixed them, USED or UNUSED."""

    task: int
    class_name: str
    layer: str
    origins: dict[int, int]


def owned_layers(model: Model) -> list[OwnedLayer]:
    ledger, spec = model.learner.ledger, model.learner.network.spec
    layers = []
    for l in spec.edge_numbers:
        tasks, counts = np.unique(ledger.owner(l).cpu().numpy(), return_counts=True)
        by_task = {int(t): int(c) for t, c in zip(tasks, counts, strict=True) if t > 0}
        layers.append(OwnedLayer(l, " → ".join(spec.ends(l)), by_task, int(counts[tasks != ABSENT].sum())))
    return layers


def neuron_layers(model: Model) -> list[LayerUse]:
    ledger, spec = model.learner.ledger, model.learner.network.spec
    layers = []
    for l in spec.hidden_groups:
        fixed = ledger.fixed(l).cpu().numpy()
        tasks, counts = np.unique(fixed[fixed > 0], return_counts=True)
        used = int(((fixed == 0) & (first_users(spec, ledger, l) < NOBODY)).sum())
        by_task = {int(t): int(c) for t, c in zip(tasks, counts, strict=True)}
        layers.append(LayerUse(spec.layer(l).name, by_task, used, len(fixed)))
    return layers


def first_users(spec: NetworkSpec, ledger: Ledger, group: int) -> NDArray[np.int16]:
    """For each neuron of a hidden layer, the first task that owns a connection, or a weight of one, into or out of it; else NOBODY.

    Outgoing connections count, too: a candidate may be used before any connection leads into it.
    """
    users = []
    for owner, edge in zip(ledger.owners, spec.edges, strict=True):
        tasks = owner.masked_fill(owner <= 0, NOBODY)
        users += [tasks.amin((1, 2))] if edge.target_group == group else []
        users += [tasks.amin((0, 2))] if edge.source_group == group and not edge.diagonal else []
    return np.asarray(torch.stack(users).amin(0).cpu().numpy())


def candidates_drawn(model: Model) -> list[Drawn]:
    """The origins of the candidates of every class of a reusing task, in every layer with candidates."""
    ledger, spec = model.learner.ledger, model.learner.network.spec
    names = [name for task in model.class_names for name in task]
    drawn = []
    for record in ledger.records:
        for c in record.classes:
            for l, neurons in sorted(c.candidates.items()):
                chosen = neurons.cpu().numpy()
                fixed = ledger.fixed(l).cpu().numpy()[chosen]
                used = first_users(spec, ledger, l)[chosen] < record.task
                origin = np.where((fixed > 0) & (fixed < record.task), fixed, np.where(used, USED, UNUSED))
                tasks, counts = np.unique(origin, return_counts=True)
                origins = {int(t): int(n) for t, n in zip(tasks, counts, strict=True)}
                drawn.append(Drawn(record.task, names[c.class_id], spec.layer(l).name, origins))
    return drawn


def reused_from(model: Model) -> dict[int, dict[int, int]]:
    """For each task, the number of its connections that start from neurons fixed by each earlier task."""
    ledger, spec = model.learner.ledger, model.learner.network.spec
    reused: dict[int, dict[int, int]] = {}
    for task in sorted(model.learner.classes_of):
        counts: dict[int, int] = {}
        for l, edge in enumerate(spec.edges, 1):
            fixed = ledger.fixed(edge.source).cpu().numpy()
            per_source = (ledger.owner(l) == task).any(2).sum(1 if edge.diagonal else 0).cpu().numpy()
            for earlier in range(1, task):
                number = int(per_source[fixed == earlier].sum())
                if number:
                    counts[earlier] = counts.get(earlier, 0) + number
        reused[task] = counts
    return reused
