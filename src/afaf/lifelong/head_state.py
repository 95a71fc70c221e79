"""The state of a model of an encoder and a head: sums over its images, and the head to solve from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from afaf.encoders import patches
from afaf.errors import ConfigError, DataError
from afaf.heads import DEFAULT, find_head
from afaf.heads.sums import Sums
from afaf.lifelong.life import Label

PARTS = ("taught", "held")


def default_head(encoder: str) -> str:
    """The head that is best on held-out images of the encoder (docs/photos.md)."""
    return "ridge" if encoder == patches.NAME else DEFAULT


@dataclass(frozen=True)
class HeadSettings:
    name: str = DEFAULT
    options: Mapping[str, float] = field(default_factory=dict)  # of the head, such as shrinkage
    balance: bool = True  # classes have equal weight, however many images they have
    class_sums: bool = False  # keep the Gram matrix of each class too: a class can then be taken out without its images

    def __post_init__(self) -> None:
        allowed = find_head(self.name).options
        strange = sorted(set(self.options) - set(allowed))
        if strange:
            raise ConfigError(f"the head {self.name} has no option {strange[0]}: it has {', '.join(allowed) or 'none'}")
        if not all(type(value) in (int, float) and value > 0 for value in self.options.values()):
            raise ConfigError(f"options of a head are numbers above 0, not {dict(self.options)}")
        for name, value in self.options.items():
            if not value <= allowed[name]:
                raise ConfigError(f"{name} of the head {self.name} is at most {allowed[name]:g}, not {value:g}")


@dataclass(frozen=True)
class State:
    """The sums of a model, with a row for each class."""

    taught: Sums
    held: Sums

    @classmethod
    def empty(cls, features: int, each: bool = False) -> State:
        """No images; with `each`, also keep the Gram matrix of each class."""
        return cls(Sums.empty(features, each=each), Sums.empty(features, each=each))

    def without(self, c: int) -> State:
        """Remove the images of a class whose own Gram matrix was kept; later classes are renumbered."""
        return State(self.taught.without(c), self.held.without(c))

    def take(self, classes: Sequence[int]) -> State:
        return State(self.taught.take(classes), self.held.take(classes))

    def placed(self, rows: Sequence[int], classes: int) -> State:
        """Renumber: class i becomes class rows[i] of `classes`."""
        return State(self.taught.placed(rows, classes), self.held.placed(rows, classes))

    @property
    def images(self) -> int:
        return self.taught.images + self.held.images

    def __add__(self, other: State) -> State:
        return State(self.taught + other.taught, self.held + other.held)

    def __sub__(self, other: State) -> State:
        return State(self.taught - other.taught, self.held - other.held)

    def settled(self) -> State:
        return State(self.taught.settled(), self.held.settled())


JUDGED = 50_000  # most held-out images that score a call: their features are kept until it ends


@dataclass(frozen=True)
class Summed:
    """Images reduced to sums, with a row for each of `labels`, and the features and rows of held-out images. Can be added."""

    labels: list[Label]
    state: State
    features: Tensor
    target: Tensor

    @classmethod
    def empty(cls, features: int, each: bool = False) -> Summed:
        return cls([], State.empty(features, each), torch.empty(0, features), torch.empty(0, dtype=torch.int64))

    def placed(self, row_of: Mapping[Label, int], classes: int) -> tuple[State, Tensor]:
        """The sums and the classes of the held-out images, renumbered: a label's row becomes row_of[label] of `classes`."""
        rows = [row_of[label] for label in self.labels]
        return self.state.placed(rows, classes), torch.tensor(rows, dtype=torch.int64)[self.target]

    def __add__(self, other: Summed) -> Summed:
        labels = joined_labels(self.labels, other.labels)
        row_of = {label: row for row, label in enumerate(labels)}
        (mine, target), (theirs, others) = self.placed(row_of, len(labels)), other.placed(row_of, len(labels))
        features, target = torch.cat([self.features, other.features]), torch.cat([target, others])
        return Summed(labels, mine + theirs, features[:JUDGED], target[:JUDGED])


def joined_labels(labels: Sequence[Label], more: Sequence[Label]) -> list[Label]:
    """The labels, and those of `more` that are new; different labels with the same spelling are an error."""
    spelled = {str(label): label for label in labels}
    for label in more:
        if spelled.setdefault(str(label), label) != label:
            raise DataError(f"{label!r} and {spelled[str(label)]!r} are spelled the same: use one of them")
    return list(spelled.values())


def is_held_out(pixels: NDArray[Any], share: float) -> bool:
    """Decided by a digest of the prepared pixels, so always the same for the same image."""
    digest = hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).digest()
    return int.from_bytes(digest[:8], "little") < share * 2**64
