"""Evaluate a model on labelled images: accuracy overall, by class and by call, confused classes, and calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError
from afaf.lifelong.calibration import calibration_error
from afaf.lifelong.life import Label, Life
from afaf.streams.sources.verify import shortened

WORST = 10  # wrong answers that are named


@dataclass(frozen=True)
class UnknownClasses:
    """Images of classes that a model does not know."""

    images: int
    classes: list[str]
    none_of_these: int | None  # images that the model calls none of these; None: it cannot tell

    def __str__(self) -> str:
        belong = "1 image belongs" if self.images == 1 else f"{self.images} images belong"
        called = "" if self.none_of_these is None else f"; {self.none_of_these} of {self.images} called none of these"
        return f"{belong} to classes that the model does not know ({shortened(self.classes)}){called}"


@dataclass(frozen=True)
class Evaluation:
    images: int  # of known classes, as are all other fields but `unknown_classes`
    accuracy: float  # percent
    calibration_error: float
    classes: list[dict[str, Any]]  # label, call, images, accuracy, and the class it is most often taken for
    calls: list[dict[str, Any]]  # call, images, accuracy
    confusion: list[dict[str, Any]]  # label, answer, images: wrong answers, the most frequent first
    worst: list[dict[str, Any]]  # file, label, answer, probability: wrong answers, the surest first
    unknown: float | None  # percent that the model calls none of these; None: it cannot tell
    unknown_classes: UnknownClasses

    @property
    def never_right(self) -> list[str]:
        return [row["label"] for row in self.classes if row["accuracy"] == 0]


def evaluate(
    life: Life, files: Sequence[Path], labels: Sequence[str], probabilities: NDArray[Any], unknown: NDArray[Any] | None
) -> Evaluation:
    """Score answers; `probabilities` are (n, known classes) in the order of `life.known`, labels as a folder spells them.

    Images of classes that the model does not know are counted separately.
    """
    spelled = set(map(str, life.known))
    check_some_known(spelled, labels)
    known = [i for i, label in enumerate(labels) if label in spelled]
    others = [i for i, label in enumerate(labels) if label not in spelled]
    called = None if unknown is None else int(unknown[others].sum())
    apart = UnknownClasses(len(others), sorted({labels[i] for i in others}), called)
    none = None if unknown is None else unknown[known]
    return _judge(life, [files[i] for i in known], [labels[i] for i in known], probabilities[known], none, apart)


def _judge(
    life: Life,
    files: Sequence[Path],
    labels: Sequence[str],
    probabilities: NDArray[Any],
    unknown: NDArray[Any] | None,
    apart: UnknownClasses,
) -> Evaluation:
    """Score answers to images of known classes."""
    names: list[Label] = list(life.known)
    spelled = {str(name): k for k, name in enumerate(names)}
    target = np.array([spelled[label] for label in labels])
    answer = probabilities.argmax(1)
    right = answer == target
    wrong = Counter((int(t), int(a)) for t, a in zip(target[~right], answer[~right], strict=True))
    best = probabilities.max(1)
    surest = sorted(np.flatnonzero(~right).tolist(), key=lambda i: -float(best[i]))[:WORST]
    call_of = np.array([life.task_of(life.known[label]) for label in names])
    classes = []
    for k, label in enumerate(names):
        mine = target == k
        if not mine.any():
            continue
        taken = Counter(answer[mine & ~right].tolist()).most_common(1)
        about = {"label": str(label), "call": int(call_of[k]), "images": int(mine.sum()), "accuracy": _percent(right[mine])}
        classes.append({**about, "taken_for": str(names[taken[0][0]]) if taken else None})
    calls = [
        {"call": int(call), "images": int((call_of[target] == call).sum()), "accuracy": _percent(right[call_of[target] == call])}
        for call in sorted(set(call_of[target].tolist()))
    ]
    return Evaluation(
        images=len(target),
        accuracy=_percent(right),
        calibration_error=round(calibration_error(probabilities, target), 4),
        classes=classes,
        calls=calls,
        confusion=[{"label": str(names[t]), "answer": str(names[a]), "images": n} for (t, a), n in wrong.most_common()],
        worst=[
            {
                "file": str(files[i]),
                "label": labels[i],
                "answer": str(names[answer[i]]),
                "probability": round(float(best[i]), 4),
            }
            for i in surest
        ],
        unknown=None if unknown is None else _percent(unknown),
        unknown_classes=apart,
    )


def check_some_known(known: Iterable[str], labels: Iterable[str]) -> None:
    """Raise DataError if the model knows none of a folder's classes."""
    names, given = set(known), set(labels)
    if not names & given:
        raise DataError(
            f"the model knows none of the classes {shortened(sorted(given))}: evaluate a folder of classes that it knows, "
            f"of {shortened(sorted(names))}"
        )


def _percent(right: NDArray[Any]) -> float:
    return round(100 * float(right.mean()), 2)
