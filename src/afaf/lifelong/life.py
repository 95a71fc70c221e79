"""The record of a model that keeps learning, besides its weights: labels by call, and a note on each call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

import numpy as np

from afaf.encoders.identity import Identity
from afaf.errors import DataError, FileError
from afaf.storage.model_file import Model

Label = str | int | float | bool
Negatives = Literal["auto", "always", "never"]
TELLING = 3  # held-out images of a class needed to warn that none is right
UNBALANCED = 10  # warn of a class with this many times fewer images than another


@dataclass
class TaskNote:
    """The note on a learned task."""

    learned: str  # when, in UTC
    images: int  # learned from
    held_out: int
    accuracy: float | None = None  # percent of the held-out images, among all classes known then; None: no images were held out
    temperature: float | None = None  # None: too few images were held out to fit one

    @classmethod
    def parse(cls, data: Any) -> TaskNote:
        note = cls(**data)
        numbers = [number for number in (note.accuracy, note.temperature) if number is not None]
        if not isinstance(note.learned, str) or not all(type(count) is int for count in (note.images, note.held_out)):
            raise ValueError("what it says of its tasks makes no sense")
        if not all(type(number) in (int, float) and isfinite(number) for number in numbers):
            raise ValueError("what it says of its tasks makes no sense")
        if note.temperature is not None and not 0 < note.temperature < 1e6:
            raise ValueError("what it says of its tasks makes no sense")
        return note


@dataclass
class Life:
    """The record of a model that keeps learning, besides its network; stored in the model file as `life`."""

    max_tasks: int
    max_classes: int | None
    pixels: Literal["uint8", "float"]  # uint8: pixels 0..255 stand for 0..1
    labels: list[list[Label]]  # by task, in the order of their class ids
    removed: list[int] = field(default_factory=list)  # class ids
    balance: bool = True
    negatives: Negatives = "auto"
    validation: float = 0.1
    epochs: int | None = None  # of every task; None: chosen from its number of images
    tasks: list[TaskNote] = field(default_factory=list)
    encoder: Identity | None = None  # a network learns from its features; None: from images

    @classmethod
    def parse(cls, data: Mapping[str, Any], class_names: list[list[str]]) -> Life:
        """The record in a file; raises ValueError, KeyError or TypeError if no model can have written it."""
        life = cls(**{**data, "tasks": [TaskNote.parse(note) for note in data["tasks"]]})
        life.encoder = Identity.parse(data["encoder"]) if data.get("encoder") else None
        if [len(labels) for labels in life.labels] != [len(names) for names in class_names] or len(life.tasks) != len(life.labels):
            raise ValueError("its labels do not fit its classes")
        every = [label for labels in life.labels for label in labels]
        if not all(isinstance(label, (str, int, float, bool)) for label in every):
            raise ValueError("its labels are neither numbers nor texts")
        if not all(type(c) is int and 0 <= c < len(every) for c in life.removed) or life.pixels not in ("uint8", "float"):
            raise ValueError("its description makes no sense: life")
        if type(life.max_tasks) is not int or life.negatives not in ("auto", "always", "never"):
            raise ValueError("its description makes no sense: life")
        if type(life.validation) not in (int, float) or not 0 <= life.validation < 1:
            raise ValueError("its description makes no sense: validation")
        if life.epochs is not None and (type(life.epochs) is not int or life.epochs < 1):
            raise ValueError("its description makes no sense: epochs")
        return life

    @property
    def every_label(self) -> list[Label]:
        """The labels by class id, including those of removed classes, which other classes may have by now."""
        return [label for labels in self.labels for label in labels]

    @property
    def known(self) -> dict[Label, int]:
        """Class ids of the labels the model answers with."""
        return {label: c for c, label in enumerate(self.every_label) if c not in self.removed}

    @property
    def named(self) -> dict[Label, int]:
        """Class ids by label: of the class that the model answers with, else of the last removed one that had the label."""
        return {label: c for c, label in enumerate(self.every_label)} | self.known

    @property
    def known_by_task(self) -> list[list[Label]]:
        """The labels the model answers with, task by task; a task whose classes were all removed has none."""
        found: list[list[Label]] = [[] for _ in self.labels]
        for label, class_id in self.known.items():
            found[self.task_of(class_id) - 1].append(label)
        return found

    def rename(self, old: Label, new: Label) -> tuple[int, int]:
        """Give a class another label; returns its place in `labels`."""
        class_id = self.class_id(old)
        if new in self.known or str(new) in {str(label) for label in self.known if label != old}:
            raise DataError(f"the model has a class '{new}' already: choose another name for '{old}'")
        task = self.task_of(class_id) - 1
        place = class_id - sum(len(labels) for labels in self.labels[:task])
        self.labels[task] = [*self.labels[task][:place], new, *self.labels[task][place + 1 :]]  # another model may share the old list
        return task, place

    def remove(self, label: Label) -> int:
        """No longer predict this class; returns its id."""
        class_id = self.class_id(label)
        if len(self.known) == 1:
            raise DataError(f"'{label}' is the only class the model knows: remove the file instead")
        self.removed.append(class_id)
        return class_id

    def class_id(self, label: Label) -> int:
        if label not in self.known:
            raise DataError(f"the model knows no class '{label}': it knows {', '.join(map(str, self.known))}")
        return self.known[label]

    def label_of(self, text: str) -> Label:
        """The label spelled `text`, which may be a number; known ones first. If there is none, the text itself."""
        return next((label for label in [*self.known, *self.every_label] if str(label) == text), text)

    def task_of(self, class_id: int) -> int:
        """The number, from 1, of the task that brought a class."""
        ends = np.cumsum([len(labels) for labels in self.labels])
        return int(np.searchsorted(ends, class_id, side="right")) + 1


def sorted_labels(labels: Iterable[Label]) -> list[Label]:
    return sorted(labels, key=lambda label: (isinstance(label, str), label))


def few_images(counts: Mapping[Label, int]) -> str | None:
    """A warning that names classes with far fewer images than another."""
    most = max(counts.values())
    few = [f"{label} ({n})" for label, n in counts.items() if n * UNBALANCED < most]
    return f"few images, against {most} of the largest class: {', '.join(few)}; more of them will help" if few else None


def life_of_run(model: Model, name: str) -> Life:
    """The record of a model written by a run, which learns no more."""
    if len(set(model.preparations)) != 1:
        raise FileError(f"{name} prepares the images of each task differently: use it from Python")
    labels: list[list[Label]] = [list(names) for names in model.class_names]
    every = [label for group in labels for label in group]
    if len(set(every)) != len(every):
        raise FileError(f"{name} has two classes of the same name: use it from Python")
    pixels: Literal["uint8", "float"] = "uint8" if len(model.learner.network.spec.input_shape) == 3 else "float"
    return Life(len(labels), len(every), pixels, labels, tasks=[TaskNote("", 0, 0) for _ in labels])
