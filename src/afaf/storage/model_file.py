"""The model file: network, ledger, classes, normalisation and settings in one safetensors file. No pickle is written or read."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from afaf.files import fill, write_output
from afaf.storage import container
from afaf.storage.container import About, Contents, Entries, readable
from afaf.storage.state import Description, build, check_entries, check_size, describe, stored_tensors
from afaf.streams.tasks import Preparation
from afaf.training.learner import Learner
from afaf.version import __version__

FORMAT = 2  # 1: no checksum, the learner's description not apart; still read


@dataclass
class Model:
    """A learned model with what is needed to use it: what its classes are called and how images are prepared for it."""

    learner: Learner
    method: str
    class_names: list[list[str]]  # by task
    preparations: list[Preparation]  # by task
    config: dict[str, Any] = field(default_factory=dict)
    stream: str = ""
    life: dict[str, Any] | None = None  # of a model that keeps learning: what it must know to go on (lifelong/model.py)

    def save(self, path: str | Path) -> None:
        """Write the model to `path`: whole, or not at all. A file there that is no model of ours is an `OverwriteError`."""
        write_output(Path(path), "safetensors", lambda part: fill(part, self._parts()))

    def to_bytes(self) -> bytes:
        """The bytes of a model file."""
        return b"".join(self._parts())

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> Model:
        """Read a model file; one that is damaged, or makes no sense, is a `FileError`."""
        return cls._from(container.read_file(Path(path), check), str(path), torch.device(device))

    @classmethod
    def from_bytes(cls, data: bytes, device: torch.device | str = "cpu") -> Model:
        """The model that `to_bytes` was asked for."""
        return cls._from(container.read(io.BytesIO(data), "the model", check), "the model", torch.device(device))

    def _parts(self) -> list[bytes | memoryview]:
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
        return container.encode(stored_tensors(self.learner), about)[0]

    @classmethod
    def _from(cls, contents: Contents, name: str, device: torch.device) -> Model:
        about = contents.about
        with readable(name):
            learner = build(_description(about), contents.tensors, device)
            preparations = [_preparation(p, learner.network.spec.input_shape) for p in about["preparations"]]
            return cls(learner, about["method"], about["class_names"], preparations, about["config"], about["stream"], about.get("life"))


def check(about: About, entries: Entries) -> None:
    """Refuse what cannot be a model, before any memory is asked for."""
    check_format(about, "model", FORMAT)
    description = _description(about)
    check_entries(description, entries)
    check_size(description, entries)
    _texts(about["method"], about["stream"])
    for names in about["class_names"]:
        if not isinstance(names, list):
            raise ValueError("its class names are not by task")
        _texts(*names)
    if not isinstance(about["config"], dict):
        raise ValueError("its settings are no table")
    if not isinstance(about.get("life"), (dict, type(None))):
        raise ValueError("its life is no table")


def check_format(about: About, kind: str, newest: int) -> None:
    """A file of a newer format, or of another kind, is refused with what to do."""
    number = about.get("format")
    if type(number) is not int or number < 1:
        raise ValueError("it does not say which format it has")
    if number > newest:
        raise ValueError(
            f"it was written by afaf {str(about.get('afaf'))[:40]} in format {number}, newer than {newest}: update afaf to read it"
        )
    found = about.get("kind", "model")
    if found != kind:
        raise ValueError(f"it is a {str(found)[:40]}, not a {kind}")


def _description(about: About) -> Description:
    return Description.parse(about if about["format"] == 1 else about["learner"])


def _preparation(data: dict[str, Any], shape: tuple[int, ...]) -> Preparation:
    """How images are prepared for a network with an input of this shape: a mean and a spread for all channels, or for each."""
    mean, std = (tuple(float(number) for number in data[name]) for name in ("mean", "std"))
    sense = (
        {len(mean), len(std)} <= {1, shape[0]}
        and all(map(isfinite, mean))
        and all(isfinite(number) and number > 0 for number in std)
        and data["augment"] in ("none", "crop-flip")
        and (data["channels"] is None or (type(data["channels"]) is int and (len(shape) == 1 or data["channels"] == shape[0])))
    )
    if not sense:
        raise ValueError("its preparation of images makes no sense")
    return Preparation(mean, std, data["channels"], data["augment"])


def _texts(*values: Any) -> None:
    if not all(isinstance(value, str) for value in values):
        raise ValueError("names in it are no text")
