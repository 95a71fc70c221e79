"""A model of a frozen encoder and a closed-form head, which keeps only sums of the images' features.

The head is solved from the sums, so the order and size of the calls do not matter, known classes can get more images, images can be
removed exactly, and two models of one encoder can be merged. The file names the encoder but does not contain it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from afaf.encoders.encoder import Encoder
from afaf.encoders.identity import Identity
from afaf.errors import DataError
from afaf.files import write_output
from afaf.heads import find_head
from afaf.heads.calibration import ENOUGH, Distance, Unseen, temperature
from afaf.heads.features import evened
from afaf.heads.projection import SIZE, Projection
from afaf.heads.sums import Linear, Sums
from afaf.lifelong.base import LearnedModel, as_bytes, only_images
from afaf.lifelong.head_state import PARTS, HeadSettings, State, Summed, default_head, is_held_out, joined_labels
from afaf.lifelong.life import TELLING, Label, Life, TaskNote, few_images
from afaf.lifelong.soundness import is_usable, of_images, too_many, unlike_images
from afaf.storage import container
from afaf.storage.container import About, Contents, Tensors, readable
from afaf.storage.model_file import check_format
from afaf.version import __version__

FORMAT = 1
KIND = "encoder and head"
SOLVED = ("linear", "_trial", "_unseen", "temperature", "distance", "unknown_above")  # cached properties computed from sums and labels
HELD_OUT = 0.2  # share of the images used to calibrate; the head that answers uses them too
NOT_LEARNED = (
    "they were not all learned, or are forgotten already, or not as often as here; the model is as it was. Forget only images that it "
    "has learned, of the same class, and with the encoder's runtime and device that learned them"
)

Part = tuple[NDArray[Any], Tensor, Sequence[Label]]  # prepared pixels of a batch, the encoder's features, and labels
Split = tuple[Tensor, Tensor, Sequence[Label]]  # the same, with a held-out mask instead of pixels


class EncodedModel(LearnedModel):
    """`learn`, `forget` and `merge` return a new model; `rename` and `remove` change this one."""

    learns = True
    identity: Identity

    def __init__(self, identity: Identity, head: HeadSettings, life: Life, sums: State, encoder: Encoder | None = None):
        self.identity, self.head, self.life, self.sums, self._encoder = identity, head, life, sums, encoder

    @classmethod
    def begin(cls, encoder: Encoder, head: HeadSettings | None = None) -> EncodedModel:
        """A model that knows no class yet."""
        head = head or HeadSettings(default_head(encoder.identity.name))
        d = SIZE if find_head(head.name).projects else encoder.identity.features
        life = Life(0, None, "uint8", [], balance=head.balance, validation=HELD_OUT)
        return cls(encoder.identity, head, life, State.empty(d, head.class_sums), encoder)

    @property
    def taught(self) -> Sums:
        """The sums of the images that are not held out."""
        return self.sums.taught

    @property
    def held(self) -> Sums:
        return self.sums.held

    @cached_property
    def projection(self) -> Projection | None:
        if not find_head(self.head.name).projects:
            return None
        return Projection(self.identity.digest, self.identity.features, self.taught.features)

    def features(self, encoded: Tensor) -> Tensor:
        """The features to sum up, from the encoder's output."""
        even = evened(encoded)
        return even if self.projection is None else self.projection(even)

    # Learning.

    def learn(self, parts: Iterable[Part]) -> EncodedModel:
        """Return the model after learning these images, of new or known classes."""
        return self.learn_sums(self.summed(parts))

    def learn_sums(self, seen: Summed) -> EncodedModel:
        """As `learn`, from sums that other processes may have computed."""
        if not seen.state.images:
            raise DataError("there are no images to learn")
        known, before = self.life.known, len(self.life.every_label)
        new = joined_labels(list(known), seen.labels)[len(known) :]
        row_of = known | {label: before + k for k, label in enumerate(new)}  # a removed class stays removed: its images may be wrong
        state, target = seen.placed(row_of, before + len(new))
        life = replace(self.life, labels=[*self.life.labels, new])
        model = EncodedModel(self.identity, self.head, life, self.sums + state, self._encoder)
        life.tasks = [*self.life.tasks, model._judged(seen, target)]
        return model

    def forget(self, parts: Iterable[Part]) -> EncodedModel:
        """Return the model as if it had never learned these images. A class without images left is gone; notes of calls stay.

        Images are not kept, so it raises DataError for images it never learned only if no images could have the remaining sums.
        Images of a removed class are forgotten by its label, until another class has this label.
        """
        seen, every, row_of = self.summed(parts), self.life.every_label, self.life.named
        strange = [label for label in seen.labels if label not in row_of]
        if strange:
            raise DataError(f"the model knows no class '{strange[0]}': it knows {', '.join(map(str, self.life.known))}")
        state, _ = seen.placed(row_of, len(every))
        if short := too_many(self.sums, state, every):
            raise DataError(f"the model has not seen so many images of '{short[0]}': {NOT_LEARNED}")
        left = self.sums - state
        stay = (left.taught.counts + left.held.counts).nonzero()[:, 0].tolist()
        if not set(self.life.known.values()) & set(stay):
            raise DataError("no class would be left that the model answers with: remove the file instead")
        if wrong := unlike_images(left, self.life, [row_of[label] for label in seen.labels]):
            raise DataError(f"without these images {wrong[0]}: {NOT_LEARNED}")
        model = EncodedModel(self.identity, self.head, _only(self.life, stay), left.settled().take(stay), self._encoder)
        if wrong := model.unsolved():
            raise DataError(f"without these images {wrong[0]}: {NOT_LEARNED}")
        return model

    def merge(self, other: EncodedModel) -> EncodedModel:
        """Return the model that has learned the images of both; classes with the same label become one, removed ones stay apart."""
        a, b = self.identity, other.identity
        if (a.digest, a.preprocessing) != (b.digest, b.preprocessing):
            raise DataError(f"the models have different encoders, {a.name} ({a.digest[:12]}) and {b.name} ({b.digest[:12]})")
        if self.head != other.head:
            raise DataError(f"the models have different heads, {self.head.name} and {other.head.name}, or different options of it")
        joined_labels(list(self.life.known), list(other.life.known))  # refuses labels that are spelled the same
        before, rows = len(self.life.every_label), _rows_beside(self.life, other.life)
        ids = iter(rows)
        added = [[label for label in labels if next(ids) >= before] for labels in other.life.labels]
        removed = [*self.life.removed, *(rows[c] for c in other.life.removed)]
        life = replace(self.life, labels=[*self.life.labels, *added], removed=removed, tasks=[*self.life.tasks, *other.life.tasks])
        theirs = other.sums.placed(rows, before + sum(row >= before for row in rows))
        return EncodedModel(a, self.head, life, self.sums + theirs, self._encoder)

    def summed(self, parts: Iterable[Part]) -> Summed:
        """The sums of these images alone; classes are numbered in order of appearance."""
        each = self.head.class_sums
        seen = Summed.empty(self.taught.features, each)
        for aside, features, labels in joined(self._set_aside(parts)):
            known = joined_labels(seen.labels, labels)
            ids = {label: c for c, label in enumerate(known)}
            y, x = torch.tensor([ids[label] for label in labels]), self.features(features)
            state = State(*(Sums.of(x[some], y[some], len(known), each) for some in (~aside, aside)))
            seen = seen + Summed(known, state, x[aside], y[aside])
        return seen

    def _set_aside(self, parts: Iterable[Part]) -> Iterator[Split]:
        """Replace the pixels of each part by a mask of the held-out images."""
        for pixels, features, labels in parts:
            yield torch.tensor([is_held_out(image, self.life.validation) for image in pixels]), features, labels

    def _judged(self, seen: Summed, target: Tensor) -> TaskNote:
        """A note on the call, with the accuracy on its held-out images of a head solved without held-out images."""
        images, held_out = seen.state.taught.images, seen.state.held.images
        note = TaskNote(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()), images, held_out)
        if len(target) and self.taught.images:
            answers = self._masked(self._trial)(seen.features).argmax(1)
            note.accuracy = round(100 * float((answers == target).double().mean()), 3)
        return note

    def warnings(self) -> list[str]:
        """Warnings about the classes, for the user."""
        counts = (self.taught.counts + self.held.counts).tolist()
        few = few_images({label: int(counts[c]) for label, c in self.life.known.items()})
        told = [few] if few else []
        lost = self._never_right()
        if lost:
            told.append(f"held-out images of {', '.join(map(str, lost))} are taken for other classes: add images, or look at their folders")
        return told

    def _never_right(self) -> list[Label]:
        """Classes whose held-out mean is predicted as another class."""
        known, held = self.life.known, self.held
        answers = self._masked(self._trial)(held.means).argmax(1)
        return [label for label, c in known.items() if held.counts[c] >= TELLING and int(answers[c]) != c]

    # Answers.

    @cached_property
    def linear(self) -> Linear:
        """The head solved from all images."""
        return self._solve(self.taught + self.held)

    @cached_property
    def _trial(self) -> Linear:
        """The head solved without the held-out images."""
        return self._solve(self.taught)

    def _solve(self, sums: Sums) -> Linear:
        with of_images():
            return find_head(self.head.name).solve(sums, balance=self.head.balance, **self.head.options)

    def _masked(self, head: Linear) -> Linear:
        """Mask removed classes, so that they are never predicted."""
        bias = head.bias.clone()
        bias[self.life.removed] = -torch.inf
        return replace(head, bias=bias)

    @cached_property
    def _unseen(self) -> Unseen | None:
        return Unseen.of(self.taught, self.held)

    @cached_property
    def temperature(self) -> float:
        means = (self.taught + self.held).means
        return temperature(self._masked(self.linear), means, self._masked(self._trial), self._unseen)

    @cached_property
    def distance(self) -> Distance:
        with of_images():
            return Distance(self.taught + self.held)

    @cached_property
    def unknown_above(self) -> float | None:
        """The distance above which an image is of no known class; None: too few images were held out."""
        if self._unseen is None or self._unseen.images < ENOUGH:
            return None
        with of_images():
            return Distance(self.taught).threshold(self._unseen)

    def scores(self, encoded: Tensor) -> Tensor:
        """Logits (n, known classes), in the order of `life.known`."""
        return self.linear(self.features(encoded))[:, list(self.life.known.values())]

    def answers(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities, and distances of each image to each class, both (n, known classes)."""
        distances = self.distance.to_each(self.features(encoded))[:, list(self.life.known.values())]
        return torch.softmax(self.scores(encoded) / self.temperature, 1), distances

    def confusion(self) -> Tensor | None:
        """(known classes, known classes): the share of a class's images predicted as each class; None: too few were held out.

        Estimated like the temperature, with draws around the held-out means.
        """
        if self._unseen is None or self._unseen.images < ENOUGH:
            return None
        known = list(self.life.known.values())
        return self._unseen.answered(self._masked(self._trial))[known][:, known]

    def encode(self, images: NDArray[Any], labels: Sequence[Label] = ()) -> Iterator[Part]:
        """Encode images (n, h, w, 1 or 3), of bytes or of floats in 0..1, and yield parts."""
        images = as_bytes(only_images(images))
        for some, pixels, features in self.encoder.stream(range(len(images)), lambda i: self.encoder.prepare(images[i : i + 1])):
            yield pixels, features, [labels[i] for i in some if labels]

    def logits(self, images: NDArray[Any]) -> NDArray[Any]:
        parts = [self.scores(encoded) for _, encoded, _ in self.encode(images)]
        return torch.cat(parts).numpy() if parts else np.zeros((0, len(self.life.known)))

    # Labels.

    def rename(self, old: Label, new: Label) -> None:
        self.life.rename(old, new)

    def remove(self, label: Label) -> bool:
        """No longer predict this class. If sums of each class are kept, also remove its images exactly and return True.

        Otherwise they stay in the sums until `forget` removes them.
        """
        class_id = self.life.remove(label)
        if self.head.class_sums:
            stay = [c for c in range(self.taught.classes) if c != class_id]
            self.life, self.sums = _only(self.life, stay), self.sums.without(class_id)
        for name in SOLVED:
            vars(self).pop(name, None)
        return self.head.class_sums

    # Files.

    def save(self, path: Any) -> None:
        write_output(Path(path), "safetensors", self.to_bytes())

    def to_bytes(self) -> bytes:
        about = {
            "format": FORMAT,
            "kind": KIND,
            "afaf": __version__,
            "encoder": self.identity.to_dict(),
            "head": asdict(self.head),
            "life": asdict(self.life),
        }
        tensors = {f"{part}.{name}": tensor for part in PARTS for name, tensor in getattr(self, part).to_tensors().items()}
        return container.encode(tensors, about)

    @classmethod
    def load(cls, path: Any, device: torch.device | str = "cpu") -> EncodedModel:
        return cls._from(container.read_file(Path(path), _check), str(path))

    @classmethod
    def from_bytes(cls, data: bytes, device: torch.device | str = "cpu") -> EncodedModel:
        return cls._from(container.read(data, "the model", _check), "the model")

    @classmethod
    def _from(cls, contents: Contents, name: str) -> EncodedModel:
        about = contents.about
        with readable(name):
            life = Life.parse(about["life"], [[str(label) for label in labels] for labels in about["life"]["labels"]])
            head = HeadSettings(**about["head"])
            parts = [Sums.from_tensors({name: contents.tensors[f"{part}.{name}"] for name in _names(head.class_sums)}) for part in PARTS]
            if {sums.classes for sums in parts} != {len(life.every_label)} or len({sums.features for sums in parts}) != 1:
                raise ValueError("its sums do not fit its classes")
            return cls(Identity.parse(about["encoder"]), head, life, State(*parts))

    def copy(self) -> EncodedModel:
        """Return a copy whose labels can be changed independently."""
        life = replace(self.life, labels=[list(labels) for labels in self.life.labels], removed=list(self.life.removed))
        return EncodedModel(self.identity, self.head, life, self.sums, self._encoder)

    def problems(self) -> list[str]:
        """Say if no images could have these sums, or if no head can be solved from them; see `Lifelong.problems`."""
        return unlike_images(self.sums, self.life) or self.unsolved()

    def unsolved(self) -> list[str]:
        """Say so if the head or its calibration cannot be computed from the sums, or is not finite."""
        try:
            heads = [self.linear, *([self._trial] if self.taught.images else [])]
            numbers = torch.cat([torch.tensor([self.temperature, self.unknown_above or 0.0]), self.distance.factor.flatten()])
            good = all(map(is_usable, heads)) and bool(torch.isfinite(numbers).all())
        except DataError:
            good = False
        return [] if good else ["no head follows from the sums"]


def joined(parts: Iterable[Split], images: int = 512) -> Iterator[Split]:
    """Join parts to at least `images` images: adding to a Gram matrix takes as long for few images as for many."""
    waiting: list[Split] = []
    for part in parts:
        waiting.append(part)
        if sum(len(features) for _, features, _ in waiting) >= images:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(parts: Sequence[Split]) -> Split:
    aside, features, labels = zip(*parts, strict=True)
    return torch.cat(aside), torch.cat(features), [label for some in labels for label in some]


def _rows_beside(life: Life, other: Life) -> list[int]:
    """The rows that the other's classes get in a merged model: known classes of one label share theirs, all others have their own."""
    rows: list[int] = []
    following = len(life.every_label)
    for c, label in enumerate(other.every_label):
        shared = life.known.get(label) if c not in other.removed else None
        rows.append(following if shared is None else shared)
        following += shared is None
    return rows


def _only(life: Life, classes: Sequence[int]) -> Life:
    """The life with these classes only, renumbered."""
    numbers = iter(range(len(life.every_label)))
    labels = [[label for label in labels if next(numbers) in classes] for labels in life.labels]
    return replace(life, labels=labels, removed=[classes.index(c) for c in life.removed if c in classes], tasks=list(life.tasks))


def _check(about: About, tensors: Tensors) -> None:
    """Refuse contents that cannot be a model."""
    check_format(about, KIND, FORMAT)
    wanted = {f"{part}.{name}" for part in PARTS for name in _names(bool(about["head"].get("class_sums")))}
    if set(tensors) - {"notes"} != wanted:  # earlier versions also kept notes
        raise ValueError("its sums are not all there")


def _names(each: bool) -> tuple[str, ...]:
    return ("counts", "totals", "gram", "grams") if each else ("counts", "totals", "gram")
