"""A learner as named tensors, and back: what model files and checkpoints have in common.

Weights that no task owns are 0 and are not stored: `weights/l` holds the values at the owned places, in index order. Nor are owners that
the records of allocations imply: those of tasks that own all connections between their neurons.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from afaf.network.ledger import ABSENT, Allocation, ClassAllocation, Ledger, Neurons, owners_of_records
from afaf.network.net import Network, Snapshot
from afaf.network.ops import Norm
from afaf.network.spec import NetworkSpec
from afaf.storage.container import Tensors
from afaf.storage.description import NORM, PARTS, Description, RecordAbout, counted_layer
from afaf.training.learner import Learner

Named = dict[str, Tensor]


# From a learner.


def live_tensors(learner: Learner) -> Named:
    """The learner's own tensors by name, weights whole, nothing copied."""
    network, ledger = learner.network, learner.ledger
    tensors: Named = {}
    for l in network.spec.edge_numbers:
        tensors |= {f"owner/{l}": ledger.owner(l), f"weights/{l}": network.weight(l), f"bias/{l}": network.bias(l)}
    tensors |= {f"fixed/{s}": fixed for s, fixed in ledger.fixed_by.items()}
    tensors |= _norms("norm", network.parameters.norms)
    for task, snapshot in network.snapshots.items():
        tensors |= {f"after/{task}/bias/{l}": bias for l, bias in enumerate(snapshot.biases, 1)}
        tensors |= _norms(f"after/{task}/norm", snapshot.norms)
    for record in ledger.records:
        tensors |= {f"record/{record.task}/free/{l}": index for l, index in record.free.items()}
        for c in () if _follows_from_free(record) else record.classes:
            for part in PARTS:
                tensors |= {f"record/{record.task}/{c.class_id}/{part}/{l}": index for l, index in getattr(c, part).items()}
    return tensors | {f"memory/{name}": tensor for name, tensor in learner.memory.items()}


def _follows_from_free(record: Allocation) -> bool:
    """Whether `Allocation.without_reuse` rebuilds the record from its free neurons, so that a file need not hold the rest."""
    return record.l_reuse == 1 and not any(c.candidates for c in record.classes)


def _norms(prefix: str, norms: Mapping[int, Norm]) -> Named:
    return {f"{prefix}/{layer}/{name}": tensor for layer, norm in norms.items() for name, tensor in norm.tensors().items()}


def stored_tensors(learner: Learner) -> Named:
    """All tensors as stored in a file: copies in host memory; of the weights, only the owned ones; no owners that the records imply."""
    spec, ledger = learner.network.spec, learner.ledger
    implied = {f"owner/{l}" for l in spec.edge_numbers if _implied(spec, ledger, l)}
    return {name: _stored(learner, name, tensor) for name, tensor in live_tensors(learner).items() if name not in implied}


def _implied(spec: NetworkSpec, ledger: Ledger, l: int) -> bool:
    """Whether every task owns all connections of W_l between the neurons in its record."""
    owners = ledger.owner(l).cpu()
    of_records = owners_of_records(spec.edge(l), l, ledger.records, owners.clamp(max=0))
    return of_records is not None and torch.equal(owners, of_records)


def _stored(learner: Learner, name: str, tensor: Tensor) -> Tensor:
    if name.startswith("weights/"):
        return _values(learner.ledger.owner(_number(name)) > 0, tensor)
    return _on_host(tensor.to(torch.int32) if name.startswith("record/") else tensor)


def training_tensors(learner: Learner) -> Named:
    """Copies of tensors that exist only while a task is learned: importances (as places and values, since most are 0) and the optimiser's
    buffers (for weights only the task's own, since the others are 0)."""
    tensors: Named = {}
    for l, importance in enumerate(learner.importance.connections, 1):
        places = torch.nonzero(importance.view(-1)).flatten()
        if len(places):
            tensors |= {f"importance/places/{l}": places.cpu(), f"importance/values/{l}": importance.view(-1)[places].cpu()}
    for s, importance in learner.importance.neurons.items():
        if bool(importance.any()):
            tensors[f"importance/neurons/{s}"] = _on_host(importance)
    for name, buffer in learner.optimiser_state.items():
        own = _values(_own_places(learner, name), buffer) if "/weight/" in name else _on_host(buffer)
        tensors[f"optimiser/{name}"] = own
    return tensors


def _own_places(learner: Learner, name: str) -> Tensor:
    return learner.ledger.owned_by(_number(name), max(learner.classes_of))


def _values(where: Tensor, weight: Tensor) -> Tensor:
    """The values of a tensor shaped like W_l at the marked places, in index order; `where` is shaped like the owner."""
    places = torch.nonzero(where.view(-1)).flatten()
    return weight.detach().reshape(where.numel(), -1).index_select(0, places).flatten().cpu()


def _number(name: str) -> int:
    """The number at the end of a tensor's name."""
    return int(name.rsplit("/", 1)[1])


def _on_host(tensor: Tensor) -> Tensor:
    """A contiguous copy in host memory, independent of the original."""
    return tensor.detach().to("cpu", copy=True).contiguous()


# To a learner.


def build(about: Description, tensors: Tensors, device: torch.device) -> Learner:
    """The learner that was stored; `check_tensors` must have checked the tensors."""
    tensors = {name: tensor if name.startswith("record/") else tensor.to(device) for name, tensor in tensors.items()}
    learner = Learner.fresh(Network(about.spec, about.seed, device, tensors["bias/1"].dtype), about.unit)
    network, ledger = learner.network, learner.ledger
    ledger.records = [_record(about, record, tensors) for record in about.records]
    for l in about.spec.edge_numbers:
        ledger.owners[l - 1] = _owners_of_edge(tensors, about, ledger, l)
        network.parameters.biases[l - 1] = tensors[f"bias/{l}"]
        _place(network.weight(l), ledger.owner(l) > 0, tensors[f"weights/{l}"], f"W_{l}")
    ledger.fixed_by = {s: _owners(tensors, about, f"fixed/{s}", fresh) for s, fresh in ledger.fixed_by.items()}
    network.parameters.norms = {layer: _norm(tensors, f"norm/{layer}") for layer in about.spec.normed_layers}
    network.snapshots = {task: _snapshot(about, tensors, task) for task in about.snapshots}
    names = about.memory if about.memory is not None else [n.removeprefix("memory/") for n in tensors if n.startswith("memory/")]
    learner.memory = {name: tensors[f"memory/{name}"] for name in names}
    ledger.keeps_past, learner.classes_of, learner.tasks_learned = about.keeps_past, dict(about.classes_of), about.tasks_learned
    learner.outputs_per_class = about.outputs_per_class
    _build_training(learner, tensors)
    return learner


def _build_training(learner: Learner, tensors: Tensors) -> None:
    """Give a learner the importances and the optimiser's buffers of the task in progress when it was stored."""
    for l, importance in enumerate(learner.importance.connections, 1):
        if f"importance/places/{l}" in tensors:
            flat, places, values = importance.view(-1), tensors[f"importance/places/{l}"], tensors[f"importance/values/{l}"]
            if len(places) != len(values) or not _within(places, len(flat)):
                raise ValueError(f"the importances of W_{l} belong to places that are not there")
            flat[places] = values
    for s, neurons in learner.importance.neurons.items():
        learner.importance.neurons[s] = tensors.get(f"importance/neurons/{s}", neurons)
    for name in (name.removeprefix("optimiser/") for name in tensors if name.startswith("optimiser/")):
        buffer = tensors[f"optimiser/{name}"]
        if "/weight/" in name:
            buffer = torch.zeros_like(learner.network.weight(_number(name)))
            _place(buffer, _own_places(learner, name), tensors[f"optimiser/{name}"], name)
        learner.optimiser_state[name] = buffer


def _place(tensor: Tensor, where: Tensor, values: Tensor, name: str) -> None:
    """Put values at the marked places of a tensor shaped like W_l, in index order; `where` is shaped like the owner."""
    places = torch.nonzero(where.view(-1)).flatten()
    blocks = tensor.view(where.numel(), -1)
    if values.numel() != len(places) * blocks.shape[1]:
        raise ValueError(f"{name} has {values.numel():,} values for {len(places) * blocks.shape[1]:,} owned places")
    blocks[places] = values.view(len(places), blocks.shape[1])


def _within(numbers: Tensor, beyond: int) -> bool:
    return not numbers.numel() or 0 <= int(numbers.min()) <= int(numbers.max()) < beyond


def _owners_of_edge(tensors: Tensors, about: Description, ledger: Ledger, l: int) -> Tensor:
    if f"owner/{l}" in tensors:
        return _owners(tensors, about, f"owner/{l}", ledger.owner(l))
    owners = owners_of_records(about.spec.edge(l), l, ledger.records, ledger.owner(l).cpu())
    if owners is None:
        raise ValueError(f"owner/{l} is missing")
    return owners.to(ledger.owner(l).device)


def _owners(tensors: Tensors, about: Description, name: str, fresh: Tensor) -> Tensor:
    """The owners in a file; those of pairs that do not exist are ABSENT, as in a fresh ledger."""
    owners = tensors[name]
    if not _within(owners - ABSENT, about.last_task + 1 - ABSENT) or bool(((owners == ABSENT) != (fresh == ABSENT)).any()):
        raise ValueError(f"{name} names tasks that have not begun, or places that do not exist")
    return owners


def _snapshot(about: Description, tensors: Tensors, task: int) -> Snapshot:
    biases = [tensors[f"after/{task}/bias/{l}"] for l in about.spec.edge_numbers]
    if not len(biases[-1]):
        raise ValueError(f"the network after task {task} has no outputs")
    return Snapshot(biases, {layer: _norm(tensors, f"after/{task}/norm/{layer}") for layer in about.spec.normed_layers})


def _record(about: Description, record: RecordAbout, tensors: Tensors) -> Allocation:
    prefix, free = f"record/{record.task}", _neurons(about, tensors, f"record/{record.task}/free")
    by_class = any(name.startswith(f"{prefix}/") and not name.startswith(f"{prefix}/free/") for name in tensors)
    if record.l_reuse == 1 and not by_class:
        if free.keys() != set(about.spec.hidden_groups):
            raise ValueError(f"the record of task {record.task} lacks neurons")
        return Allocation.without_reuse(about.spec, record.task, free, record.classes)
    classes = tuple(ClassAllocation(c, *(_neurons(about, tensors, f"{prefix}/{c}/{part}") for part in PARTS)) for c in record.classes)
    return Allocation(record.task, record.l_reuse, free, classes)


def _neurons(about: Description, tensors: Tensors, prefix: str) -> Neurons:
    neurons: Neurons = {}
    for l in range(1, about.spec.L + 1):
        if f"{prefix}/{l}" in tensors:
            index = tensors[f"{prefix}/{l}"].to(torch.int64).cpu()
            layer = counted_layer(about.spec, prefix.rsplit("/", 1)[1], l)
            if layer is None or not _within(index, about.spec.layer(layer).size):
                raise ValueError(f"{prefix}/{l} names neurons that are not there")
            neurons[l] = index
    return neurons


def _norm(tensors: Tensors, prefix: str) -> Norm:
    return Norm(*(tensors[f"{prefix}/{name}"] for name in NORM))
