"""A model of either kind, ready to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afaf.encoders.encoder import Encoder
from afaf.errors import ConfigError
from afaf.lifelong.base import inputs
from afaf.lifelong.encoded import EncodedModel
from afaf.lifelong.model_store import AnyModel
from afaf.serve.decoder import Reading
from afaf.streams.sources.source import Pixels

CONFUSED = 0.02  # the smallest share of a class's images that is reported
NEAREST = 5
NOTHING: dict[str, Any] = {
    "room": None,
    "classes": [],
    "calls": [],
    "confused": None,
    "unknown": False,
}  # without a model


@dataclass(frozen=True)
class Answers:
    """Probabilities of the known classes for some images, and distances to the classes if the model has them."""

    probabilities: NDArray[Any]
    distances: NDArray[Any] | None = None


class Served:
    """A model, with everything computed that its answers need. It is never changed, only replaced."""

    def __init__(self, model: AnyModel, checksum: str | None, undo: bool):
        self.model, self.checksum, self.undo = model, checksum, undo
        self.labels = [str(label) for label in model.life.known]
        self.unknown_above: float | None = None
        self.confusion: NDArray[Any] | None = None
        self.reading: Reading = _network_reading(model.spec.input_shape) if model.identity is None else model.identity.preprocessing
        if isinstance(model, EncodedModel):
            self.unknown_above = model.unknown_above
            shares = model.confusion()
            self.confusion = None if shares is None else shares.numpy()
        side, channels = (self.reading.size, 3) if not isinstance(self.reading, tuple) else self.reading
        self.answers(np.zeros((1, side, side, channels), dtype=np.uint8))  # computes the head, which is then kept
        self.summary = {
            "room": model.room() if model.learns and not isinstance(model, EncodedModel) else None,
            "classes": self._classes(),
            "calls": self._calls(),
            "confused": self._confused(),
            "unknown": self.unknown_above is not None,
        }

    def answers(self, pixels: Pixels) -> Answers:
        """Answers for images prepared as `reading` says."""
        if self.model.identity is None:
            return Answers(self.model.probabilities(pixels))
        encoded = self.model.encoder.encode(pixels)
        if not isinstance(self.model, EncodedModel):
            return Answers(self.model.probabilities(inputs(encoded)))
        return Answers(*(tensor.numpy() for tensor in self.model.answers(encoded)))

    def describe(self, answers: Answers, row: int, top: int, unknown_below: float) -> dict[str, Any]:
        """The answer for one image, as JSON has it. `unknown` is null if the model cannot tell."""
        shares = answers.probabilities[row]
        order = np.argsort(-shares, kind="stable")[:top]
        unknown = None if not unknown_below else bool(shares[order[0]] < unknown_below)
        answer: dict[str, Any] = {"top": [{"label": self.labels[k], "probability": round(float(shares[k]), 6)} for k in order]}
        if answers.distances is not None:
            far = answers.distances[row]
            near = [k for k in np.argsort(far, kind="stable")[:NEAREST] if np.isfinite(far[k])]
            answer["nearest"] = [{"label": self.labels[k], "distance": round(float(far[k]), 6)} for k in near]
            answer["unknown_above"] = self.unknown_above
            if self.unknown_above is not None:
                unknown = bool(unknown) or bool(far.min() > self.unknown_above)
        return {"label": "unknown" if unknown else self.labels[order[0]], "unknown": unknown, **answer}

    def _classes(self) -> list[dict[str, Any]]:
        life = self.model.life
        counts = (self.model.taught.counts + self.model.held.counts).long().tolist() if isinstance(self.model, EncodedModel) else None
        rows = []
        for name, class_id in zip(self.labels, life.known.values(), strict=True):
            call = life.task_of(class_id)
            images = None if counts is None else counts[class_id]
            rows.append({"name": name, "call": call, "learned": life.tasks[call - 1].learned, "images": images})
        return rows

    def _calls(self) -> list[dict[str, Any]]:
        life = self.model.life
        notes = zip(life.tasks, life.known_by_task, strict=True)
        return [
            {
                "call": number,
                "learned": note.learned,
                "images": note.images + note.held_out,
                "held_out": note.held_out,
                "accuracy": note.accuracy,
                "classes": [str(label) for label in labels],
            }
            for number, (note, labels) in enumerate(notes, 1)
        ]

    def _confused(self) -> list[dict[str, Any]] | None:
        """Pairs of classes that are taken for each other, the worst first; None: this model cannot tell."""
        if self.confusion is None:
            return None
        off = self.confusion * (1 - np.eye(len(self.labels)))
        pairs = [(off[i, j], self.labels[i], self.labels[j]) for i, j in np.argwhere(off >= CONFUSED)]
        return [{"class": a, "taken_for": b, "share": round(float(share), 4)} for share, a, b in sorted(pairs, reverse=True)[:20]]


def ready(model: AnyModel, checksum: str | None, undo: bool, encoder: Encoder | None, device: Any) -> Served:
    """The model with its encoder attached; `encoder` is reused if it is the same. `undo`: its last change can be undone."""
    if model.identity is not None and not model.attached:
        same = encoder is not None and encoder.identity == model.identity
        model.attach(encoder if same and encoder is not None else model.identity.name, device)
    return Served(model, checksum, undo)


def _network_reading(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 3 or shape[1] != shape[2] or shape[0] not in (1, 3):
        raise ConfigError(f"the model does not read square grey or colour images but {shape}: use it from Python")
    return shape[1], shape[0]
