"""What can have changed since a task began: the small part of a learner that a checkpoint within a task has to hold.

What moves while a task is learned are the connections that the ledger gives to it, in W_l from l_reuse on, and what the plan says besides;
what a method's `start` touched is found by looking at the tensors. The rest is in the whole file that was written before the task.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor

from afaf.network.net import Network
from afaf.storage.state import (
    Description,
    Named,
    finish_building,
    live_tensors,
    number_of,
    on_host,
    owned_values,
    place_values,
    replace_tensors,
    stored,
    whole,
)
from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan


class Marks:
    """How a learner stood when its last whole file was written: for each tensor which object it was, and how often it had been written to.

    Writing by captured graphs and custom kernels is not counted by PyTorch; what those write to is what a plan moves.
    """

    def __init__(self, learner: Learner):
        self._marks = {name: (weakref.ref(tensor), tensor._version) for name, tensor in live_tensors(learner).items()}

    def untouched(self, name: str, tensor: Tensor) -> bool:
        there, version = self._marks.get(name, (None, 0))
        return there is not None and there() is tensor and tensor._version == version


def changed_tensors(learner: Learner, plan: LearningPlan, marks: Marks) -> Named:
    """Copies in host memory of all that can differ from the marked state, the importances and the optimiser's buffers."""
    tensors: Named = {}
    for name, tensor in live_tensors(learner).items():
        if not _moves(name, plan) and marks.untouched(name, tensor):
            continue
        if name.startswith("weights/"):
            tensors[name.replace("weights", "own")] = owned_values(learner.ledger.owner(number_of(name)), tensor, plan.task)
        else:
            tensors[name] = stored(learner, name, tensor)
    return tensors | _importances(learner) | _optimiser_state(learner, plan.task)


def weight_sums(learner: Learner) -> list[int]:
    """A sum over the bits of each W_l: told with a part, so that whoever puts it together sees whether it is the same again."""
    bits = {4: torch.int32, 8: torch.int64, 2: torch.int16}
    return [int(weight.view(bits[weight.element_size()]).sum(dtype=torch.int64)) for weight in learner.network.parameters.weights]


def _moves(name: str, plan: LearningPlan) -> bool:
    head, *rest = name.split("/")
    if head == "weights":
        return int(rest[0]) >= plan.first_trainable
    if head == "bias":
        return int(rest[0]) in plan.biases
    return head == "norm" and plan.norm_changes(int(rest[0]))


def _importances(learner: Learner) -> Named:
    """Those of connections as places and values: most are 0."""
    tensors: Named = {}
    for l, importance in enumerate(learner.importance.connections, 1):
        places = torch.nonzero(importance.view(-1)).flatten()
        if len(places):
            tensors[f"importance/places/{l}"] = places.cpu()
            tensors[f"importance/values/{l}"] = importance.view(-1)[places].cpu()
    for s, importance in learner.importance.neurons.items():
        if bool(importance.any()):
            tensors[f"importance/neurons/{s}"] = on_host(importance)
    return tensors


def _optimiser_state(learner: Learner, task: int) -> Named:
    """The optimiser's buffers; of weights the task's own, since the others are 0."""
    tensors: Named = {}
    for name, buffer in learner.optimiser_state.items():
        _, kind, number = name.split("/")
        own = kind == "weight"
        tensors[f"optimiser/{name}"] = owned_values(learner.ledger.owner(int(number)), buffer, task) if own else on_host(buffer)
    return tensors


# Putting it together again.


def fresh(about: Description, device: torch.device) -> Learner:
    """The learner before its first task, which no file needs to hold: its numbers are functions of the seed."""
    return Learner.fresh(Network(about.spec, about.seed, device, about.dtype or torch.float32), about.unit)


def check_fits(base: Learner, about: Description, names: Container[str]) -> None:
    """The part was taken of this very network, with more output rows at most."""
    spec, rows = base.network.spec, about.spec.n_classes
    same = (
        spec.with_classes(rows) == about.spec
        and base.network.seed == about.seed
        and base.ledger.unit == about.unit
        and base.network.dtype == about.dtype
    )
    if not same or rows < spec.n_classes or (rows > spec.n_classes and f"owner/{spec.E}" not in names):
        raise ValueError("it was taken of another network than the file it refers to")


def apply_change(base: Learner, about: Description, tensors: Mapping[str, Tensor], task: int, sums: Any) -> Learner:
    """Bring a learner, as it stood before the task, to where the part was taken. `base` is changed."""
    network, ledger = base.network, base.ledger
    missing = about.spec.n_classes - network.spec.n_classes
    if missing > 0:
        network.grow_outputs(missing)
        ledger.grow_outputs(missing)
    base.begin(whole(task, 1, about.last_task + 1), about.classes_of[task])
    tensors = {name: tensor if name.startswith("record/") else tensor.to(network.device) for name, tensor in tensors.items()}
    replace_tensors(base, about, tensors)
    for l in network.spec.edge_numbers:
        if f"own/{l}" in tensors:
            owner, weight = ledger.owner(l), network.weight(l)
            kept = (owner > 0) & (owner != task)
            network.parameters.weights[l - 1] = torch.where(kept, weight, torch.zeros_like(weight))
            place_values(network.weight(l), owner == task, tensors[f"own/{l}"], f"W_{l}")
        _place_importance(base, l, tensors)
    for s, neurons in base.importance.neurons.items():
        base.importance.neurons[s] = tensors.get(f"importance/neurons/{s}", neurons)
    base.optimiser_state = _buffers(base, tensors, task)
    finish_building(base, about)
    if weight_sums(base) != sums:
        raise ValueError("its weights do not add up with the file it refers to")
    return base


def _buffers(learner: Learner, tensors: Mapping[str, Tensor], task: int) -> Named:
    state: Named = {}
    for name, tensor in tensors.items():
        head, _, rest = name.partition("/")
        if head == "optimiser":
            l = number_of(name)
            own = "/weight/" in name
            state[rest] = torch.zeros_like(learner.network.weight(l)) if own else tensor
            if own:
                place_values(state[rest], learner.ledger.owned_by(l, task), tensor, name)
    return state


def _place_importance(learner: Learner, l: int, tensors: Mapping[str, Tensor]) -> None:
    if f"importance/places/{l}" not in tensors:
        return
    flat, places = learner.importance.connections[l - 1].view(-1), tensors[f"importance/places/{l}"]
    values = tensors[f"importance/values/{l}"]
    if len(places) != len(values) or (len(places) and not 0 <= int(places.min()) <= int(places.max()) < len(flat)):
        raise ValueError(f"the importances of W_{l} belong to places that are not there")
    flat[places] = values
