"""A learner as named tensors and a description that JSON can hold: what model files and checkpoints have in common.

Weights that no task owns are 0 and are not stored: `weights/l` holds the values at the owned places, in index order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import torch
from torch import Tensor

from afaf.network.ledger import Allocation, ClassAllocation, Neurons, Unit
from afaf.network.net import Network, Snapshot
from afaf.network.ops import Norm
from afaf.network.spec import Kind, Layer, NetworkSpec
from afaf.storage.container import DTYPES, NAMES, Entries, Entry
from afaf.training.learner import Learner
from afaf.training.optimisers import SGD, AdamW

Named = dict[str, Tensor]

MOST = 1 << 31  # no layer, class or task has a number beyond
LARGE = 1 << 30  # bytes of a network that are always granted; beyond them a file must be large itself to ask for more
MOST_LAYERS = 1 << 12
MANY = 1 << 20  # layers x (classes + tasks) beyond which a description is a trap for whoever goes through them
UNFOLD = 128  # times a file's size that the network in it may take: unowned weights are not stored
NORM = ("gain", "shift", "mean", "var")
BUFFERS = (*SGD(momentum=0.9).buffers, *AdamW().buffers)  # of optimisers
PARTS = ("candidates", "sources", "targets")


# From a learner.


def describe(learner: Learner) -> dict[str, Any]:
    """Everything of a learner that is not a tensor."""
    network, ledger = learner.network, learner.ledger
    return {
        "network": network.spec.to_dict(),
        "dtype": NAMES[network.dtype],
        "seed": network.seed,
        "unit": ledger.unit,
        "keeps_past": ledger.keeps_past,
        "classes_of": {str(task): list(classes) for task, classes in learner.classes_of.items()},
        "tasks_learned": learner.tasks_learned,
        "snapshots": sorted(network.snapshots),
        "records": [
            {"task": record.task, "l_reuse": record.l_reuse, "classes": [c.class_id for c in record.classes]} for record in ledger.records
        ],
        "memory": list(learner.memory),  # in order: sums over what a method keeps must be repeated in the same order
    }


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
        for c in record.classes:
            for part in PARTS:
                tensors |= {f"record/{record.task}/{c.class_id}/{part}/{l}": index for l, index in getattr(c, part).items()}
    return tensors | {f"memory/{name}": tensor for name, tensor in learner.memory.items()}


def _norms(prefix: str, norms: Mapping[int, Norm]) -> Named:
    return {f"{prefix}/{layer}/{name}": tensor for layer, norm in norms.items() for name, tensor in norm.tensors().items()}


def stored_tensors(learner: Learner) -> Named:
    """All tensors as a file holds them: copies in host memory, of the weights the owned ones."""
    return {name: stored(learner, name, tensor) for name, tensor in live_tensors(learner).items()}


def stored(learner: Learner, name: str, tensor: Tensor) -> Tensor:
    """One of the live tensors as a file holds it."""
    if name.startswith("weights/"):
        return owned_values(learner.ledger.owner(number_of(name)), tensor)
    return on_host(tensor.to(torch.int32) if name.startswith("record/") else tensor)


def owned_values(owner: Tensor, weight: Tensor, task: int | None = None) -> Tensor:
    """The values of a tensor shaped like W_l at the places that a task owns, or that any does, in index order."""
    places = torch.nonzero((owner > 0 if task is None else owner == task).view(-1)).flatten()
    return weight.detach().reshape(owner.numel(), -1).index_select(0, places).flatten().cpu()


def number_of(name: str) -> int:
    """The number at the end of a tensor's name."""
    return int(name.rsplit("/", 1)[1])


def on_host(tensor: Tensor) -> Tensor:
    """A contiguous copy in host memory: what happens to the original later does not reach it."""
    return tensor.detach().to("cpu", copy=True).contiguous()


# To a learner.


@dataclass(frozen=True)
class RecordAbout:
    task: int
    l_reuse: int
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Description:
    """What `describe` said, read back and checked."""

    spec: NetworkSpec
    dtype: torch.dtype | None  # of the network's numbers; None: of a format that did not say
    seed: int
    unit: Unit
    keeps_past: bool
    classes_of: dict[int, tuple[int, ...]]
    tasks_learned: int
    snapshots: tuple[int, ...]
    records: tuple[RecordAbout, ...]
    memory: dict[str, None] | None  # names in order; None: of a format that did not say, in the file's order

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Description:
        """Raises ValueError, KeyError or TypeError for anything that no learner could have said."""
        spec = parse_spec(data["network"])
        unit, keeps_past, memory = data["unit"], data["keeps_past"], data.get("memory")
        _must(unit in get_args(Unit), "unit")
        _must(isinstance(keeps_past, bool), "keeps_past")
        _must(memory is None or (isinstance(memory, list) and all(isinstance(name, str) for name in memory)), "memory")
        memory = None if memory is None else dict.fromkeys(memory)
        classes_of = {whole(int(task), 1): wholes(classes, 0, spec.n_classes) for task, classes in data["classes_of"].items()}
        seen = [c for classes in classes_of.values() for c in classes]
        _must(len(seen) == len(set(seen)), "classes_of: a class belongs to one task")
        last = max(classes_of, default=0)
        records = tuple(
            RecordAbout(whole(r["task"], 1, last + 1), whole(r["l_reuse"], 1, spec.E + 1), wholes(r["classes"], 0, spec.n_classes))
            for r in data["records"]
        )
        _must(len({record.task for record in records}) == len(records), "records: a task has one")
        snapshots = wholes(data["snapshots"], 1, last + 1)
        _must(len(set(snapshots)) == len(snapshots), "snapshots: a task has one")
        lists = len(seen) + len(classes_of) + sum(len(record.classes) for record in records)
        _must(spec.L * (lists + 1) <= MANY, "it has too many layers, tasks and classes")
        dtype = DTYPES[data["dtype"]] if "dtype" in data else None
        _must(dtype is None or dtype.is_floating_point, "dtype")
        return cls(
            spec,
            dtype,
            whole(data["seed"], -(1 << 63), 1 << 64),
            unit,
            keeps_past,
            classes_of,
            whole(data["tasks_learned"], 0, last + 1),
            snapshots,
            records,
            memory,
        )

    @property
    def last_task(self) -> int:
        """The last task that has begun."""
        return max(self.classes_of, default=0)

    @cached_property
    def classes_recorded(self) -> dict[str, set[str]]:
        """For each task with a record, its classes; as text, since tensors are named by them."""
        return {str(record.task): set(map(str, record.classes)) for record in self.records}


def parse_spec(data: Mapping[str, Any]) -> NetworkSpec:
    """A network's description from a file; numbers that no network has are refused before anything is computed with them."""
    layers = []
    _must(len(data["hidden"]) <= MOST_LAYERS, "it has too many layers")
    for data_of_layer in data["hidden"]:
        layer = Layer.from_dict(data_of_layer)
        _must(layer.kind in get_args(Kind) and all(isinstance(text, str) for text in layer.ops), "layer")
        _must(len(set(layer.ops)) == len(layer.ops), "layer: it has no operation twice")
        numbers = ((layer.neurons, 1, MOST), (layer.kernel, 1, 1 << 12), (layer.stride, 1, 1 << 12), (layer.padding, 0, 1 << 12))
        for value, low, beyond in numbers:
            whole(value, low, beyond)
        wholes(list(layer.inputs), 1)
        layers.append(layer)
    shape, dropout = wholes(data["input_shape"], 1), data["dropout"]
    _must(len(shape) in (1, 3) and isinstance(data["name"], str), "network")
    _must(type(dropout) in (int, float) and 0 <= dropout < 1, "dropout")
    spec = NetworkSpec(data["name"], shape, tuple(layers), whole(data["n_classes"], 1), dropout)
    _must(spec.layers[-1].edge == spec.E, "network")
    return spec


def whole(value: Any, low: int = 0, beyond: int = MOST) -> int:
    if type(value) is not int or not low <= value < beyond:
        raise ValueError(f"{str(value)[:40]} is not a whole number in {low}..{beyond - 1}")
    return value


def wholes(values: Any, low: int = 0, beyond: int = MOST) -> tuple[int, ...]:
    _must(isinstance(values, list), "a list of numbers")
    return tuple(whole(value, low, beyond) for value in values)


def _must(fact: bool, what: str) -> None:
    if not fact:
        raise ValueError(f"its description makes no sense: {what}")


def check_entries(about: Description, entries: Entries, *, part: bool = False) -> None:
    """Every tensor that the description asks for is there with its shape and type, and no other; of a `part`, some may be absent."""
    dtype = about.dtype or entries["bias/1"].dtype
    _must(dtype.is_floating_point, "biases are not floating-point numbers")
    needed = _needed(about, dtype)
    for name, entry in entries.items():
        expected = needed.pop(name, None) or _optional(name, about, dtype, part)
        if expected is None:
            raise ValueError(f"tensor {name[:80]!r} belongs to nothing in it")
        if not expected(entry):
            raise ValueError(f"tensor {name[:80]!r} has shape {entry.shape} and type {entry.dtype}, which do not fit the network")
    if needed and not part:
        raise ValueError(f"tensor {next(iter(needed))!r} is missing")
    if about.memory is not None and not part:
        _must({f"memory/{name}" for name in about.memory} == {name for name in entries if name.startswith("memory/")}, "memory")


def check_size(about: Description, entries: Entries) -> None:
    """A small file must not ask for a huge network."""
    payload = sum(entry.end - entry.begin for entry in entries.values())
    if about.spec.dense_params * 4 > max(LARGE, UNFOLD * payload):
        raise ValueError(f"it describes a network of {about.spec.dense_params:,} weights, far larger than the file can hold")


Expected = Callable[[Entry], bool]


def _exactly(dtype: torch.dtype, *shape: int) -> Expected:
    return lambda entry: entry.dtype == dtype and entry.shape == shape


def _up_to(dtype: torch.dtype, most: int) -> Expected:
    return lambda entry: entry.dtype == dtype and len(entry.shape) == 1 and entry.numel <= most


def _needed(about: Description, dtype: torch.dtype) -> dict[str, Expected]:
    """The tensors that a whole learner has."""
    spec, needed = about.spec, dict[str, Expected]()
    for l, edge in enumerate(spec.edges, 1):
        needed[f"owner/{l}"] = _exactly(torch.int16, edge.outputs, edge.inputs, edge.block if about.unit == "weight" else 1)
        needed[f"weights/{l}"] = _up_to(dtype, edge.weights)
        needed[f"bias/{l}"] = _exactly(dtype, edge.outputs)
        for task in about.snapshots:
            last = l == spec.E  # after an early task there may have been fewer output rows
            needed[f"after/{task}/bias/{l}"] = _up_to(dtype, edge.outputs) if last else _exactly(dtype, edge.outputs)
    needed |= {f"fixed/{s}": _exactly(torch.int16, spec.layer(s).size) for s in spec.streams}
    for layer in about.spec.normed_layers:
        for prefix in ("norm", *(f"after/{task}/norm" for task in about.snapshots)):
            needed |= {f"{prefix}/{layer}/{name}": _exactly(dtype, spec.layer(layer).size) for name in NORM}
    return needed


def _optional(name: str, about: Description, dtype: torch.dtype, part: bool) -> Expected | None:
    """What may be there besides: records of allocations, what a method keeps; in a part, a task's own weights and importances."""
    head, *rest = name.split("/")
    spec = about.spec
    if head == "memory" and (about.memory is None or name.removeprefix("memory/") in about.memory):
        return lambda entry: True
    if head == "record":
        layer = _record_layer(rest, about)
        return None if layer is None else _up_to(torch.int32, spec.layer(layer).size)
    if not part or not rest or not rest[-1].isdecimal() or len(rest[-1]) > 9 or not 1 <= int(rest[-1]) <= spec.L:
        return None
    l = int(rest[-1])
    if head == "importance" and rest[:-1] == ["neurons"]:
        return _exactly(dtype, spec.layer(l).size) if l in spec.streams else None
    buffer = head == "optimiser" and len(rest) == 3 and rest[0] in BUFFERS
    if buffer and rest[1] in ("gain", "shift"):
        return _exactly(dtype, spec.layer(l).size)
    if l > spec.E:
        return None
    weights = spec.edge(l).weights
    if buffer:
        return {"weight": _up_to(dtype, weights), "bias": _exactly(dtype, spec.edge(l).outputs)}.get(rest[1])
    return {
        ("own",): _up_to(dtype, weights),
        ("importance", "places"): _up_to(torch.int64, weights),
        ("importance", "values"): _up_to(dtype, weights),
    }.get((head, *rest[:-1]))


def _record_layer(rest: list[str], about: Description) -> int | None:
    """The neuron layer that a record's tensor counts, if there is such a record: TASK/free/s, TASK/CLASS/sources/l and so on."""
    classes = about.classes_recorded.get(rest[0])
    if classes is None or len(rest) < 3 or not rest[-1].isdecimal() or len(rest[-1]) > 9:
        return None
    known = rest[1:-1] == ["free"] or (len(rest) == 4 and rest[1] in classes and rest[2] in PARTS)
    return _counted_layer(about.spec, rest[-2], int(rest[-1])) if known else None


def _counted_layer(spec: NetworkSpec, part: str, number: int) -> int | None:
    """The layer whose neurons a part of a record counts: sources and targets go by l of W_l, all else by stream."""
    if part in ("sources", "targets"):
        edge = spec.edge(number) if number in spec.edge_numbers else None
        return None if edge is None else edge.source if part == "sources" else edge.target
    return number if number in spec.streams else None


def build(about: Description, tensors: Mapping[str, Tensor], device: torch.device) -> Learner:
    """The learner that was stored; `check_entries` has seen the tensors' shapes."""
    tensors = {name: tensor if name.startswith("record/") else tensor.to(device) for name, tensor in tensors.items()}
    learner = Learner.fresh(Network(about.spec, about.seed, device, tensors["bias/1"].dtype), about.unit)
    replace_tensors(learner, about, tensors)
    for l in about.spec.edge_numbers:
        place_values(learner.network.weight(l), learner.ledger.owner(l) > 0, tensors[f"weights/{l}"], f"W_{l}")
    finish_building(learner, about)
    return learner


def replace_tensors(learner: Learner, about: Description, tensors: Mapping[str, Tensor]) -> None:
    """Give a learner the stored tensors, weights and importances aside; what is not among them stays as it is."""
    network, ledger = learner.network, learner.ledger
    for l in range(1, about.spec.L + 1):
        if f"owner/{l}" in tensors:
            ledger.owners[l - 1] = _owners(tensors[f"owner/{l}"], about, f"owner/{l}")
        if f"bias/{l}" in tensors:
            network.parameters.biases[l - 1] = tensors[f"bias/{l}"]
        if f"fixed/{l}" in tensors:
            ledger.fixed_by[l] = _owners(tensors[f"fixed/{l}"], about, f"fixed/{l}")
    for layer, norm in network.parameters.norms.items():
        for name in NORM:
            setattr(norm, name, tensors.get(f"norm/{layer}/{name}", getattr(norm, name)))
    for task in about.snapshots:
        if task not in network.snapshots or f"after/{task}/bias/1" in tensors:
            network.snapshots[task] = _snapshot(about, tensors, task)
    there = {record.task: record for record in ledger.records}
    told = {int(name.split("/")[1]) for name in tensors if name.startswith("record/")}
    ledger.records = [
        _record(about, record, tensors) if record.task in told or record.task not in there else there[record.task]
        for record in about.records
    ]
    names = about.memory if about.memory is not None else [n.removeprefix("memory/") for n in tensors if n.startswith("memory/")]
    learner.memory = {name: tensors[f"memory/{name}"] if f"memory/{name}" in tensors else learner.memory[name] for name in names}


def finish_building(learner: Learner, about: Description) -> None:
    """What a learner knows besides tensors."""
    learner.ledger.keeps_past = about.keeps_past
    learner.classes_of = dict(about.classes_of)
    learner.tasks_learned = about.tasks_learned


def place_values(tensor: Tensor, where: Tensor, values: Tensor, name: str) -> None:
    """Put values at the marked places of a tensor shaped like W_l, in index order; `where` is shaped like the owner."""
    places = torch.nonzero(where.view(-1)).flatten()
    blocks = tensor.view(where.numel(), -1)
    if values.numel() != len(places) * blocks.shape[1]:
        raise ValueError(f"{name} has {values.numel():,} values for {len(places) * blocks.shape[1]:,} owned places")
    blocks[places] = values.view(len(places), blocks.shape[1])


def _owners(owners: Tensor, about: Description, name: str) -> Tensor:
    if owners.numel() and not 0 <= int(owners.min()) <= int(owners.max()) <= about.last_task:
        raise ValueError(f"{name} names tasks that have not begun")
    return owners


def _snapshot(about: Description, tensors: Mapping[str, Tensor], task: int) -> Snapshot:
    biases = [tensors[f"after/{task}/bias/{l}"] for l in about.spec.edge_numbers]
    _must(len(biases[-1]) > 0, f"the network after task {task} has no outputs")
    return Snapshot(biases, {layer: _norm(tensors, f"after/{task}/norm/{layer}") for layer in about.spec.normed_layers})


def _record(about: Description, record: RecordAbout, tensors: Mapping[str, Tensor]) -> Allocation:
    prefix = f"record/{record.task}"
    classes = tuple(ClassAllocation(c, *(_neurons(about, tensors, f"{prefix}/{c}/{part}") for part in PARTS)) for c in record.classes)
    return Allocation(record.task, record.l_reuse, _neurons(about, tensors, f"{prefix}/free"), classes)


def _neurons(about: Description, tensors: Mapping[str, Tensor], prefix: str) -> Neurons:
    found: Neurons = {}
    for l in range(1, about.spec.L + 1):
        if f"{prefix}/{l}" in tensors:
            index = tensors[f"{prefix}/{l}"].to(torch.int64).cpu()
            layer = _counted_layer(about.spec, prefix.rsplit("/", 1)[1], l)
            if layer is None or (index.numel() and not 0 <= int(index.min()) <= int(index.max()) < about.spec.layer(layer).size):
                raise ValueError(f"{prefix}/{l} names neurons that are not there")
            found[l] = index
    return found


def _norm(tensors: Mapping[str, Tensor], prefix: str) -> Norm:
    return Norm(*(tensors[f"{prefix}/{name}"] for name in NORM))
