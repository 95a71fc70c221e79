"""The model file: network, ledger, classes, normalisation and settings in one safetensors file. No pickle is written or read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from afaf import checked
from afaf.files import write_output
from afaf.storage import container
from afaf.storage.container import About, Contents, Tensors, readable
from afaf.storage.description import Description, check_tensors, describe
from afaf.storage.state import build, stored_tensors
from afaf.streams.tasks import Preparation
from afaf.training.learner import Learner
from afaf.version import __version__

FORMAT = 4  # 1: no checksum, no separate description of the learner; 2: sources and targets of every task; 3: all owners; all are read


@dataclass
class Model:
    """A learned model with its class names and the preparation of its images."""

    learner: Learner
    method: str
    class_names: list[list[str]]  # by task
    preparations: list[Preparation]  # by task
    config: dict[str, Any] = field(default_factory=dict)
    stream: str = ""
    life: dict[str, Any] | None = None  # of a model that keeps learning: its labels and settings (lifelong/model.py)

    def save(self, path: str | Path) -> None:
        """Write the model to `path`: whole, or not at all. A file there that is not a model raises `OverwriteError`."""
        write_output(Path(path), "safetensors", self.to_bytes())

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> Model:
        """Read a model file; raises `FileError` for one that is damaged or inconsistent."""
        return cls._from(container.read_file(Path(path), check), str(path), torch.device(device))

    @classmethod
    def from_bytes(cls, data: bytes, device: torch.device | str = "cpu") -> Model:
        """The model in the bytes of a model file, the inverse of `to_bytes`."""
        return cls._from(container.read(data, "the model", check), "the model", torch.device(device))

    def to_bytes(self) -> bytes:
        """The bytes of a model file."""
        about = {
            "format": FORMAT,
            "kind": "model",
            "afaf": __version__,
            "stream": self.stream,
            "method": self.method,
            "learner": describe(self.learner),
            "class_names": self.class_names,
            "preparations": [asdict(preparation) for preparation in self.preparations],
            "config": self.config,
        }
        if self.life is not None:
            about["life"] = self.life
        return container.encode(stored_tensors(self.learner), about)

    @classmethod
    def _from(cls, contents: Contents, name: str, device: torch.device) -> Model:
        about = contents.about
        with readable(name):
            learner = build(_description(about), contents.tensors, device)
            preparations = [_preparation(p, learner.network.spec.input_shape) for p in about["preparations"]]
            return cls(learner, about["method"], about["class_names"], preparations, about["config"], about["stream"], about.get("life"))


def check(about: About, tensors: Tensors) -> None:
    """Refuse contents that cannot be a model."""
    check_format(about, "model", FORMAT)
    check_tensors(_description(about), tensors)
    fields = {"method": str, "stream": str, "class_names": list[list[str]], "config": dict[str, Any], "life": dict[str, Any] | None}
    for name, kind in fields.items():
        checked.build(kind, about.get("life") if name == "life" else about[name], name)


def check_format(about: About, kind: str, newest: int) -> None:
    """Refuse a file of a newer format or of another kind; the error says what to do."""
    number = about.get("format")
    if type(number) is not int or number < 1:
        raise ValueError("it does not say which format it has")
    if number > newest:
        raise ValueError(
            f"it was written by afaf {str(about.get('afaf'))[:40]} in format {number}, newer than {newest}: update afaf to read it"
        )
    if about.get("kind", "model") != kind:
        raise ValueError(f"it is a {str(about['kind'])[:40]}, not a {kind}")


def _description(about: About) -> Description:
    return Description.parse(about if about["format"] == 1 else about["learner"])


def _preparation(data: dict[str, Any], shape: tuple[int, ...]) -> Preparation:
    """The preparation of images for a network with this input shape; mean and std are one number, or one per channel."""
    preparation: Preparation = checked.build(Preparation, data, "preparation")
    fits = {len(preparation.mean), len(preparation.std)} <= {1, shape[0]} and min(preparation.std) > 0
    if not fits or (preparation.channels is not None and len(shape) > 1 and preparation.channels != shape[0]):
        raise ValueError("its preparation does not fit its images")
    return preparation
