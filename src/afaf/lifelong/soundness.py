"""Check that sums can be those of images: removing images that were never learned leaves sums that no images have.

A class without images has sums of 0; the scatter of images around the means of their classes has no negative eigenvalue.
If a few images that were never learned are removed from sums of many, the result may still pass: this cannot be detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.errors import DataError
from afaf.heads.sums import ROUNDING, Linear, Sums, unpacked
from afaf.lifelong.head_state import State
from afaf.lifelong.life import Label, Life

FEATURES = 1e-4  # how much features of one image may differ, relative to their length: other devices and runtimes give 1e-6

START_OVER = "use a copy of the file from before that, or learn the images again into a new file"
TAKEN_OUT = f"images were forgotten that it had not learned, or had forgotten already: {START_OVER}"
SPOILED = (
    "no head follows from the model's sums, which are not those of any images: an earlier afaf forget has taken out images that it had "
    f"not learned; {START_OVER}"
)


@dataclass(frozen=True)
class Slack:
    """The tolerance for sums of real images."""

    length: float  # root mean square length of an image's features
    images: float  # the error allowed, as a number of images

    @classmethod
    def of(cls, state: State, life: Life) -> Slack:
        """From the images ever learned and the number forgotten: errors of rounding and of features add up."""
        ever = max(state.images, sum(note.images + note.held_out for note in life.tasks))
        squares = float(state.taught.gram.trace() + state.held.gram.trace())
        length = (max(squares, 0.0) / max(state.images, 1)) ** 0.5
        return cls(length, ROUNDING * ever + FEATURES * (ever - state.images))

    def of_sums(self) -> float:
        return self.images * self.length

    def of_products(self) -> float:
        return self.images * self.length**2


def unlike_images(state: State, life: Life, classes: Iterable[int] | None = None) -> list[str]:
    """Reasons why no images can have these sums; the Gram matrices of all classes are checked, or only those of `classes`."""
    labels, slack = life.every_label, Slack.of(state, life)
    found: list[str] = []
    for part in (state.taught, state.held):
        left = [labels[c] for c in _left_behind(part, slack)]
        found += [f"the class '{label}' has no image but sums that are not 0" for label in left]
        whole = part.settled()
        if not _is_scatter(whole.scatter(), whole.freedom, slack):
            found.append("the sums of products are not those of any images")
        chosen = range(part.classes) if classes is None else classes
        found += [f"the sums of the class '{label}' are not those of any images" for label in _odd_classes(whole, labels, chosen, slack)]
    return list(dict.fromkeys(found))


def too_many(state: State, gone: State, labels: Sequence[Label]) -> list[Label]:
    """Classes with fewer images than are to be removed."""
    short = (state.taught.counts < gone.taught.counts) | (state.held.counts < gone.held.counts)
    return [labels[c] for c in short.nonzero()[:, 0].tolist()]


@contextmanager
def of_images() -> Iterator[None]:
    """Raise DataError if no head can be solved: the sums are not those of images, which is no fault of the program."""
    try:
        yield
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # PyTorch does not list it
        raise DataError(SPOILED) from None


def is_usable(head: Linear) -> bool:
    """Whether all its numbers are finite, except for a bias of -inf, which a class without images has."""
    return bool(torch.isfinite(head.weights).all() and (torch.isfinite(head.bias) | (head.bias == -torch.inf)).all())


def _left_behind(sums: Sums, slack: Slack) -> list[int]:
    """Classes without images whose sums are not 0."""
    wrong = sums.totals.norm(dim=1) > slack.of_sums()
    if sums.grams is not None:
        wrong = wrong | (sums.grams.abs().amax(1) > slack.of_products())
    return [c for c in range(sums.classes) if bool(wrong[c]) and not sums.counts[c]]


def _odd_classes(sums: Sums, labels: Sequence[Label], classes: Iterable[int], slack: Slack) -> Iterator[Label]:
    if sums.grams is None:
        return
    for c in classes:
        own = unpacked(sums.grams[c]) - torch.outer(sums.totals[c], sums.means[c])
        if not _is_scatter(own, int(sums.counts[c].clamp(min=1)) - 1, slack):
            yield labels[c]


def _is_scatter(scatter: Tensor, freedom: int, slack: Slack) -> bool:
    """Whether no eigenvalue is negative, and without degrees of freedom all are 0, up to rounding."""
    most = slack.of_products()
    if not freedom:
        return float(scatter.norm()) <= most
    lifted = (scatter + scatter.T) / 2
    lifted.diagonal().add_(most)
    return int(torch.linalg.cholesky_ex(lifted).info) == 0
