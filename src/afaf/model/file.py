"""The model file: network, ledger, classes and settings in one safetensors file. No pickle is written or read.

Weights that no task owns are 0 and are not stored: `weights/l` holds the values at the owned places, in index order.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from afaf.errors import DataError
from afaf.learning.learner import Learner
from afaf.network.forward import Norm
from afaf.network.ledger import Allocation, ClassAllocation, Ledger, Neurons
from afaf.network.net import Network, Snapshot
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Preparation
from afaf.version import __version__

FORMAT = 1


@dataclass
class Model:
    """A learned model with what is needed to use it: what its classes are called and how images are prepared for it."""

    learner: Learner
    method: str
    class_names: list[list[str]]  # by task
    preparations: list[Preparation]  # by task
    config: dict[str, Any] = field(default_factory=dict)
    stream: str = ""

    def save(self, path: Path) -> None:
        """Write the model to `path`; see `runs.folder.write_whole` for doing so without ever leaving half a file."""
        tensors, records = _tensors(self.learner)
        network = self.learner.network
        about = {
            "format": FORMAT,
            "afaf": __version__,
            "stream": self.stream,
            "method": self.method,
            "network": network.spec.to_dict(),
            "seed": network.seed,
            "unit": self.learner.ledger.unit,
            "keeps_past": self.learner.ledger.keeps_past,
            "classes_of": {str(task): list(classes) for task, classes in self.learner.classes_of.items()},
            "tasks_learned": self.learner.tasks_learned,
            "snapshots": sorted(network.snapshots),
            "records": records,
            "class_names": self.class_names,
            "preparations": [asdict(preparation) for preparation in self.preparations],
            "config": self.config,
        }
        save_file(tensors, path, metadata={"afaf": json.dumps(about)})

    @classmethod
    def load(cls, path: Path, device: torch.device | str = "cpu") -> Model:
        """Read a model file."""
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path} cannot be read as a model file: {error}") from None
        if "afaf" not in metadata:
            raise DataError(f"{path} is a safetensors file of another program: it holds no afaf model")
        about = json.loads(metadata["afaf"])
        if about["format"] > FORMAT:
            raise DataError(f"{path} was written by afaf {about['afaf']} in a newer format: update afaf to read it")
        learner = _learner(about, tensors, torch.device(device))
        preparations = [Preparation(tuple(p["mean"]), tuple(p["std"]), p["channels"], p["augment"]) for p in about["preparations"]]
        return cls(learner, about["method"], about["class_names"], preparations, about["config"], about["stream"])


def _tensors(learner: Learner) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    network, ledger = learner.network, learner.ledger
    tensors: dict[str, Tensor] = {}
    for l in range(1, network.spec.L):
        owner = ledger.owner(l)
        tensors[f"owner/{l}"] = owner
        tensors[f"weights/{l}"] = network.weight(l)[(owner > 0).expand_as(network.weight(l))]
        tensors[f"bias/{l}"] = network.bias(l)
    for l, fixing in enumerate(ledger.fixings, 1):
        tensors[f"fixed/{l}"] = fixing
    for layer, norm in network.parameters.norms.items():
        tensors |= {f"norm/{layer}/{name}": tensor for name, tensor in norm.tensors().items()}
    for task, snapshot in network.snapshots.items():
        tensors |= {f"after/{task}/bias/{l}": bias for l, bias in enumerate(snapshot.biases, 1)}
        for layer, norm in snapshot.norms.items():
            tensors |= {f"after/{task}/norm/{layer}/{name}": tensor for name, tensor in norm.tensors().items()}
    records = []
    for record in ledger.records:
        records.append({"task": record.task, "l_reuse": record.l_reuse, "classes": [c.class_id for c in record.classes]})
        tensors |= _named(f"record/{record.task}/free", record.free)
        for c in record.classes:
            for kind in ("candidates", "sources", "targets"):
                tensors |= _named(f"record/{record.task}/{c.class_id}/{kind}", getattr(c, kind))
    tensors |= {f"memory/{name}": tensor for name, tensor in learner.memory.items()}
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, records


def _learner(about: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> Learner:
    spec = NetworkSpec.from_dict(about["network"])
    dtype = tensors["bias/1"].dtype
    network = Network(spec, about["seed"], device, dtype)
    ledger = Ledger(spec, about["unit"], device)
    for l in range(1, spec.L):
        owner = tensors[f"owner/{l}"]
        ledger.owners[l - 1] = owner
        weight = network.weight(l)
        weight[(owner > 0).expand_as(weight)] = tensors[f"weights/{l}"]
        network.parameters.biases[l - 1] = tensors[f"bias/{l}"]
    ledger.fixings = [tensors[f"fixed/{l}"] for l in range(1, spec.L + 1)]
    layers = list(network.parameters.norms)
    network.parameters.norms = {layer: _norm(tensors, f"norm/{layer}") for layer in layers}
    for task in about["snapshots"]:
        network.snapshots[task] = Snapshot(
            [tensors[f"after/{task}/bias/{l}"] for l in range(1, spec.L)],
            {layer: _norm(tensors, f"after/{task}/norm/{layer}") for layer in layers},
        )
    ledger.keeps_past = about["keeps_past"]
    ledger.records = [_record(about_record, tensors) for about_record in about["records"]]
    learner = Learner.fresh(network, about["unit"])
    learner.ledger = ledger
    learner.memory = {name.removeprefix("memory/"): t for name, t in tensors.items() if name.startswith("memory/")}
    learner.classes_of = {int(task): tuple(classes) for task, classes in about["classes_of"].items()}
    learner.tasks_learned = about["tasks_learned"]
    return learner


def _named(prefix: str, neurons: Neurons) -> dict[str, Tensor]:
    return {f"{prefix}/{l}": index.to(torch.int32) for l, index in neurons.items()}


def _neurons(tensors: dict[str, Tensor], prefix: str) -> Neurons:
    return {
        int(name.rsplit("/", 1)[1]): tensor.to(torch.int64).cpu()
        for name, tensor in sorted(tensors.items())
        if name.startswith(prefix + "/")
    }


def _record(about: dict[str, Any], tensors: dict[str, Tensor]) -> Allocation:
    prefix = f"record/{about['task']}"
    classes = tuple(
        ClassAllocation(c, *(_neurons(tensors, f"{prefix}/{c}/{kind}") for kind in ("candidates", "sources", "targets")))
        for c in about["classes"]
    )
    return Allocation(about["task"], about["l_reuse"], _neurons(tensors, f"{prefix}/free"), classes)


def _norm(tensors: dict[str, Tensor], prefix: str) -> Norm:
    return Norm(*(tensors[f"{prefix}/{name}"] for name in ("gain", "shift", "mean", "var")))
