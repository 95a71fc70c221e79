"""Statistics of a model's ledger: which task owns which connections, and what later tasks reuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from afaf.network.ledger import Ledger
from afaf.storage.model_file import Model

NOBODY = np.iinfo(np.int16).max  # larger than every task number
UNUSED, USED = 0, -1  # origin of a candidate that no task has fixed: never used, or used and still free


@dataclass(frozen=True)
class OwnedLayer:
    """W_l: owned connections (or weights) by task, and their total number."""

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
    """Number of a class's candidates in one layer by origin: the task that had fixed them, USED or UNUSED."""

    task: int
    class_name: str
    layer: str
    origins: dict[int, int]


def owned_layers(model: Model) -> list[OwnedLayer]:
    ledger, spec = model.learner.ledger, model.learner.network.spec
    layers = []
    for l in range(1, spec.L):
        owner = ledger.owner(l).cpu().numpy()
        by_task = _count(owner[owner > 0])
        layers.append(OwnedLayer(l, f"{spec.layer(l).name} → {spec.layer(l + 1).name}", by_task, ledger.owner(l).numel()))
    return layers


def neuron_layers(model: Model) -> list[LayerUse]:
    ledger, spec = model.learner.ledger, model.learner.network.spec
    layers = []
    for l in range(2, spec.L):
        fixed = ledger.fixed(l).cpu().numpy()
        used = int(((fixed == 0) & (first_users(ledger, l) < NOBODY)).sum())
        layers.append(LayerUse(spec.layer(l).name, _count(fixed[fixed > 0]), used, len(fixed)))
    return layers


def _count(values: NDArray[Any]) -> dict[int, int]:
    return dict(zip(*(array.tolist() for array in np.unique(values, return_counts=True)), strict=True))


def first_users(ledger: Ledger, l: int) -> NDArray[np.int16]:
    """Return, for each neuron of a hidden layer, the first task that owns a connection into or out of it; NOBODY if none does.

    Outgoing connections count: a task may reuse a candidate that has no incoming connection.
    """
    into, out_of = (owner.masked_fill(owner == 0, NOBODY) for owner in (ledger.owner(l - 1), ledger.owner(l)))
    return np.asarray(torch.minimum(into.amin((1, 2)), out_of.amin((0, 2))).cpu().numpy())


def candidates_drawn(model: Model) -> list[Drawn]:
    """Return the origin of the candidates of each class and layer, for tasks with reuse."""
    ledger, spec = model.learner.ledger, model.learner.network.spec
    names = [name for task in model.class_names for name in task]
    drawn = []
    for record in ledger.records:
        for c in record.classes:
            for l, neurons in sorted(c.candidates.items()):
                chosen = neurons.cpu().numpy()
                fixed = ledger.fixed(l).cpu().numpy()[chosen]
                used = first_users(ledger, l)[chosen] < record.task
                origin = np.where((fixed > 0) & (fixed < record.task), fixed, np.where(used, USED, UNUSED))
                drawn.append(Drawn(record.task, names[c.class_id], spec.layer(l).name, _count(origin)))
    return drawn


def reused_from(model: Model) -> dict[int, dict[int, int]]:
    """Return by task the number of its connections that start from neurons fixed by each earlier task."""
    ledger, spec = model.learner.ledger, model.learner.network.spec
    reused: dict[int, dict[int, int]] = {}
    for task in sorted(model.learner.classes_of):
        counts: dict[int, int] = {}
        for l in range(2, spec.L):
            fixed = ledger.fixed(l).cpu().numpy()
            per_source = (ledger.owner(l) == task).any(2).sum(0).cpu().numpy()
            for earlier in range(1, task):
                number = int(per_source[fixed == earlier].sum())
                if number:
                    counts[earlier] = counts.get(earlier, 0) + number
        reused[task] = counts
    return reused
