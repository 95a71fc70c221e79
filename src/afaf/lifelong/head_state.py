"""What a model of an encoder and a head keeps of its images: sums, and which head follows from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afaf.encoders import patches
from afaf.errors import ConfigError
from afaf.heads import DEFAULT, find_head
from afaf.heads.sums import Sums

PARTS = ("taught", "held")


def default_head(encoder: str) -> str:
    """The head that is best on held-out images of the encoder (docs/photos.md)."""
    return "ridge" if encoder == patches.NAME else DEFAULT


@dataclass(frozen=True)
class HeadSettings:
    name: str = DEFAULT
    options: Mapping[str, float] = field(default_factory=dict)  # of the head, such as shrinkage
    balance: bool = True  # classes count the same, however many images they have

    def __post_init__(self) -> None:
        allowed = find_head(self.name).options
        strange = sorted(set(self.options) - set(allowed))
        if strange:
            raise ConfigError(f"the head {self.name} has no option {strange[0]}: it has {', '.join(allowed) or 'none'}")
        if not all(type(value) in (int, float) and value > 0 for value in self.options.values()):
            raise ConfigError(f"options of a head are numbers above 0, not {dict(self.options)}")


@dataclass(frozen=True)
class State:
    """The sums of a model, with a row for each class."""

    taught: Sums
    held: Sums

    @classmethod
    def empty(cls, features: int) -> State:
        return cls(Sums.empty(features), Sums.empty(features))

    def take(self, classes: Sequence[int]) -> State:
        return State(self.taught.take(classes), self.held.take(classes))

    def placed(self, rows: Sequence[int], classes: int) -> State:
        """Class i becomes class rows[i] of so many."""
        return State(self.taught.placed(rows, classes), self.held.placed(rows, classes))

    def __add__(self, other: State) -> State:
        return State(self.taught + other.taught, self.held + other.held)

    def __sub__(self, other: State) -> State:
        return State(self.taught - other.taught, self.held - other.held)


def is_held_out(pixels: NDArray[Any], share: float) -> bool:
    """Decided by a digest of the prepared pixels: the same for the same image, whenever it comes."""
    digest = hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).digest()
    return int.from_bytes(digest[:8], "little") < share * 2**64
