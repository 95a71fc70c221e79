"""Which encoder a model was taught with, as data: its name, the digest of its weights, and how images are prepared for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Preprocessing:
    """The middle square of an image is scaled to `size` (bicubic) and normalised as (pixel - mean) / std, with pixels in 0..255."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float = 1.0  # share of the middle square's side that is kept

    def __post_init__(self) -> None:
        numbers = (*self.mean, *self.std, self.crop)
        if type(self.size) is not int or not 1 <= self.size <= 4096 or len(self.mean) != 3 or len(self.std) != 3:
            raise ValueError("its preprocessing makes no sense")
        if not all(type(n) in (int, float) and isfinite(n) for n in numbers) or min(self.std) <= 0 or not 0 < self.crop <= 1:
            raise ValueError("its preprocessing makes no sense")

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Preprocessing:
        """From a table of its fields; raises ValueError, KeyError or TypeError if it does not describe a preprocessing."""
        return cls(**{**data, "mean": tuple(data["mean"]), "std": tuple(data["std"])})


@dataclass(frozen=True)
class Identity:
    name: str
    digest: str  # of the weights
    features: int  # numbers that the encoder gives for an image
    preprocessing: Preprocessing

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Identity:
        """From a table in a file; raises ValueError, KeyError or TypeError if it does not describe an encoder."""
        found = cls(**{**data, "preprocessing": Preprocessing.parse(data["preprocessing"])})
        if not isinstance(found.name, str) or not isinstance(found.digest, str) or type(found.features) is not int or found.features < 1:
            raise ValueError("its encoder makes no sense")
        return found

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, types, shapes and values of tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
