"""The part of a stored learner that is not a tensor, and the tensors that must come with it: both are checked before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from afaf.bounds import Count, CountOrZero, Within
from afaf.checked import build
from afaf.network.ledger import Unit
from afaf.network.spec import NetworkSpec
from afaf.storage.container import Tensors
from afaf.training.learner import Learner
from afaf.training.optimisers import SGD, AdamW

LARGE = 1 << 30  # bytes of a network that any file may describe; a larger network needs a larger file
UNFOLD = 1024  # largest ratio of a network's size to its file's: unowned weights are not stored, of isolated tasks neither are owners
MOST_LAYERS = 1 << 12
MANY = 1 << 20  # layers x (classes + tasks): more would take too long to check
NORM = ("gain", "shift", "mean", "var")
BUFFERS = (*SGD(momentum=0.9).buffers, *AdamW().buffers)  # of optimisers
PARTS = ("candidates", "sources", "targets")
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class RecordAbout:
    task: Count
    l_reuse: Count
    classes: tuple[CountOrZero, ...]


@dataclass(frozen=True)
class Description:
    """The parts of a learner that are not tensors."""

    spec: NetworkSpec
    seed: Annotated[int, Within(-(1 << 63), (1 << 64) - 1)]
    unit: Unit
    keeps_past: bool
    classes_of: dict[int, tuple[CountOrZero, ...]]
    tasks_learned: CountOrZero
    snapshots: tuple[Count, ...]
    records: tuple[RecordAbout, ...]
    dtype: Literal["F64", "F32", "F16", "BF16"] | None = None  # of the network's numbers; the first format did not state it
    outputs_per_class: Count = 1
    memory: tuple[str, ...] | None = None  # names in order; the first format did not state them: the file's order

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Description:
        """The description in a file. Raises ValueError, KeyError, TypeError or ConfigError if no learner can have it."""
        _must(len(data["network"]["hidden"]) <= MOST_LAYERS, "it has too many layers")
        stored = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        classes_of = {int(task): classes for task, classes in data["classes_of"].items()}
        about: Description = build(cls, stored | {"spec": NetworkSpec.from_dict(data["network"]), "classes_of": classes_of})
        about._check()
        return about

    @property
    def last_task(self) -> int:
        """The last task that has begun."""
        return max(self.classes_of, default=0)

    @cached_property
    def classes_recorded(self) -> dict[str, set[str]]:
        """For each task with a record, its classes; as text, since tensors are named by them."""
        return {str(record.task): set(map(str, record.classes)) for record in self.records}

    def _check(self) -> None:
        spec, last, recorded = self.spec, self.last_task, [record.task for record in self.records]
        seen = [c for classes in self.classes_of.values() for c in classes]
        lists = len(seen) + len(self.classes_of) + sum(len(record.classes) for record in self.records)
        _must(spec.L * (lists + 1) <= MANY, "it has too many layers, tasks and classes")
        _must(spec.layers[-1].edge == spec.E, "network")
        _must(all(1 <= task < 1 << 31 for task in self.classes_of), "classes_of: tasks count from 1")
        _must(len(seen) == len(set(seen)) and max(seen, default=0) < spec.n_classes, "classes_of: a class belongs to one task")
        _must(len(set(recorded)) == len(recorded) and max(recorded, default=0) <= last, "records: a task has one")
        _must(all(r.l_reuse <= spec.E and max(r.classes, default=0) < spec.n_classes for r in self.records), "records")
        _must(len(set(self.snapshots)) == len(self.snapshots) and max(self.snapshots, default=0) <= last, "snapshots: a task has one")
        _must(self.tasks_learned <= last, "tasks_learned")


def describe(learner: Learner) -> dict[str, Any]:
    """The description of a learner, for a file."""
    network, ledger = learner.network, learner.ledger
    return {
        "network": network.spec.to_dict(),
        "dtype": next(name for name, dtype in FLOATS.items() if dtype == network.dtype),
        "seed": network.seed,
        "unit": ledger.unit,
        "keeps_past": ledger.keeps_past,
        "classes_of": {str(task): list(classes) for task, classes in learner.classes_of.items()},
        "tasks_learned": learner.tasks_learned,
        "outputs_per_class": learner.outputs_per_class,
        "snapshots": sorted(network.snapshots),
        "records": [
            {"task": record.task, "l_reuse": record.l_reuse, "classes": [c.class_id for c in record.classes]} for record in ledger.records
        ],
        "memory": list(learner.memory),  # in order, so that sums over these tensors keep their order
    }


def _must(fact: bool, what: str) -> None:
    if not fact:
        raise ValueError(f"its description is not that of a model: {what}")


def check_tensors(about: Description, tensors: Tensors, *, within_task: bool = False) -> None:
    """Check that exactly the described tensors are there, with their shapes and types; `within_task`, importances and buffers too.

    A small file that describes a huge network is refused.
    """
    dtype = FLOATS[about.dtype] if about.dtype else tensors["bias/1"].dtype
    _must(dtype.is_floating_point, "biases are not floating-point numbers")
    needed, memory = _needed(about, dtype), set(about.memory or ())
    for name, tensor in tensors.items():
        head, _, rest = name.partition("/")
        if head == "memory" and (about.memory is None or rest in memory):
            continue
        expected = needed.pop(name, None) or _optional(name, about, dtype, within_task)
        if expected is None:
            raise ValueError(f"tensor {name[:80]!r} belongs to nothing in it")
        if not expected(tensor):
            raise ValueError(f"tensor {name[:80]!r} has shape {tuple(tensor.shape)} and type {tensor.dtype}, which do not fit the network")
    for name in [*needed, *(f"memory/{name}" for name in memory)]:
        if name not in tensors:
            raise ValueError(f"tensor {name[:80]!r} is missing")
    if sum(prod(edge.shape) for edge in about.spec.edges) * 4 > max(LARGE, UNFOLD * sum(tensor.nbytes for tensor in tensors.values())):
        raise ValueError(f"it describes a network of {about.spec.dense_params:,} weights, far larger than the file can hold")


Expected = Callable[[Tensor], bool]


def _exactly(dtype: torch.dtype, *shape: int) -> Expected:
    return lambda tensor: tensor.dtype == dtype and tensor.shape == shape


def _up_to(dtype: torch.dtype, most: int) -> Expected:
    return lambda tensor: tensor.dtype == dtype and tensor.dim() == 1 and len(tensor) <= most


def _needed(about: Description, dtype: torch.dtype) -> dict[str, Expected]:
    """The tensors that every learner has."""
    spec, needed = about.spec, dict[str, Expected]()
    for l, edge in enumerate(spec.edges, 1):
        needed[f"weights/{l}"] = _up_to(dtype, edge.weights)
        needed[f"bias/{l}"] = _exactly(dtype, edge.outputs)
        for task in about.snapshots:
            last = l == spec.E  # after an early task there may have been fewer output rows
            needed[f"after/{task}/bias/{l}"] = _up_to(dtype, edge.outputs) if last else _exactly(dtype, edge.outputs)
    needed |= {f"fixed/{s}": _exactly(torch.int16, spec.layer(s).size) for s in spec.groups}
    for layer in about.spec.normed_layers:
        for prefix in ("norm", *(f"after/{task}/norm" for task in about.snapshots)):
            needed |= {f"{prefix}/{layer}/{name}": _exactly(dtype, spec.layer(layer).size) for name in NORM}
    return needed


def _optional(name: str, about: Description, dtype: torch.dtype, within_task: bool) -> Expected | None:
    """Optional tensors: owners, records of allocations; within a task, importances and the optimiser's buffers."""
    *path, last = name.split("/")
    if not last.isdecimal() or len(last) > 9:
        return None
    spec, l = about.spec, int(last)
    if path == ["owner"] and l in spec.edge_numbers:
        edge = spec.edge(l)
        return _exactly(torch.int16, edge.outputs, edge.inputs, edge.block if about.unit == "weight" else 1)
    if path[:1] == ["record"]:
        layer = _record_layer(path[1:], l, about)
        return None if layer is None else _up_to(torch.int32, spec.layer(layer).size)
    if not within_task:
        return None
    match path:
        case ["importance", "neurons"] if l in spec.groups:
            return _exactly(dtype, spec.layer(l).size)
        case ["importance", "places" | "values" as kind] if l in spec.edge_numbers:
            return _up_to(torch.int64 if kind == "places" else dtype, spec.edge(l).weights)
        case ["optimiser", buffer, "gain" | "shift"] if buffer in BUFFERS and 1 <= l <= spec.L:
            return _exactly(dtype, spec.layer(l).size)
        case ["optimiser", buffer, "weight"] if buffer in BUFFERS and l in spec.edge_numbers:
            return _up_to(dtype, spec.edge(l).weights)
        case ["optimiser", buffer, "bias"] if buffer in BUFFERS and l in spec.edge_numbers:
            return _exactly(dtype, spec.edge(l).outputs)
    return None


def _record_layer(path: list[str], number: int, about: Description) -> int | None:
    """The layer whose neurons a record's tensor lists: TASK/free/s, TASK/CLASS/sources/l and so on; None if there is no such record."""
    match path:
        case [task, "free"] if task in about.classes_recorded:
            return counted_layer(about.spec, "free", number)
        case [task, c, part] if c in about.classes_recorded.get(task, ()) and part in PARTS:
            return counted_layer(about.spec, part, number)
    return None


def counted_layer(spec: NetworkSpec, part: str, number: int) -> int | None:
    """The layer whose neurons a part of a record lists: sources and targets are numbered by l of W_l, all else by group."""
    if part in ("sources", "targets"):
        edge = spec.edge(number) if number in spec.edge_numbers else None
        return None if edge is None else edge.source if part == "sources" else edge.target
    return number if number in spec.groups else None
