"""The sums over images from which every closed-form head follows; a model keeps them instead of images.

With features f (d numbers) and classes 0..k-1, they are  counts_c = images of c,  total_c = sum of f over c,  gram = sum of f f' over all.
Sums are added in float64, so the order and grouping of the calls change a head by rounding alone; subtraction removes images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.exact import Exact, exact

ROUNDING = 1e-11  # share of the sum of squares that differences of sums may leave


@dataclass(frozen=True)
class Sums:
    """Immutable: every operation returns new sums."""

    counts: Tensor  # (k,)
    totals: Tensor  # (k, d)
    gram: Tensor  # (d, d)
    grams: Tensor | None = None  # (k, d (d + 1) / 2): each class's Gram matrix, packed, if a class is to be removed without its images

    @classmethod
    def empty(cls, features: int, classes: int = 0, each: bool = False) -> Sums:
        sizes = ((classes,), (classes, features), (features, features), *([(classes, packed_size(features))] if each else []))
        return cls(*(torch.zeros(size, dtype=Exact) for size in sizes))

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int, each: bool = False) -> Sums:
        """The sums of these images alone; labels are 0..classes-1. `each`: with the Gram matrix of each class."""
        f = exact(features)
        labels = labels.to(f.device)
        one_hot = F.one_hot(labels, classes).to(f.dtype)
        grams = f.new_zeros(classes, packed_size(f.shape[1])) if each else None
        if grams is not None:
            for c in labels.unique().tolist():
                some = f[labels == c]
                grams[c] = packed(some.T @ some)
        return cls(one_hot.sum(0), one_hot.T @ f, f.T @ f, grams)

    @property
    def classes(self) -> int:
        return len(self.counts)

    @property
    def features(self) -> int:
        return self.gram.shape[0]

    @property
    def images(self) -> int:
        return int(self.counts.sum())

    def __add__(self, other: Sums) -> Sums:
        """The sums of both; class c is the same class in both, and one may have fewer classes."""
        k = max(self.classes, other.classes)
        a, b = self.with_classes(k), other.with_classes(k)
        grams = None if a.grams is None or b.grams is None else a.grams + b.grams
        return Sums(a.counts + b.counts, a.totals + b.totals, a.gram + b.gram, grams)

    def __sub__(self, other: Sums) -> Sums:
        """The sums without the images of `other`; `settled` removes rounding errors."""
        left = self + replace(other._by_class(torch.neg), gram=-other.gram)
        if bool((left.counts < 0).any()):
            raise ValueError("more images of a class are taken out than were added")
        return left

    def settled(self) -> Sums:
        """Set the sums of classes without images to 0, and the Gram matrix if there are no images."""
        here = (self.counts > 0)[:, None]
        grams = None if self.grams is None else self.grams * here
        return Sums(self.counts, self.totals * here, self.gram * here.any(), grams)

    def to(self, device: torch.device) -> Sums:
        return replace(self._by_class(lambda rows: rows.to(device)), gram=self.gram.to(device))

    def with_classes(self, classes: int) -> Sums:
        return self.placed(range(self.classes), classes) if classes > self.classes else self

    def take(self, classes: Sequence[int]) -> Sums:
        """The classes in another order, or fewer of them; the Gram matrix stays that of all images."""
        return self._by_class(lambda rows: rows[list(classes)])

    def placed(self, rows: Sequence[int], classes: int) -> Sums:
        """Class i becomes class rows[i] of this many."""
        index = torch.tensor([*rows], dtype=torch.int64, device=self.counts.device)
        return self._by_class(lambda own: own.new_zeros(classes, *own.shape[1:]).index_copy(0, index, own))

    def without(self, c: int) -> Sums:
        """The sums of all images but those of a class, whose own Gram matrix was kept; later classes are renumbered."""
        assert self.grams is not None
        return replace(self.take([i for i in range(self.classes) if i != c]), gram=self.gram - unpacked(self.grams[c]))

    def emptied(self, c: int) -> Sums:
        """Class c without images: its mean and count are gone from all sums. How its images spread stays in the Gram matrix."""
        others = torch.ones_like(self.counts).index_fill(0, torch.tensor([c], device=self.counts.device), 0)
        mean_part = torch.outer(self.totals[c], self.means[c])
        left = self._by_class(lambda rows: rows * others.view(-1, *[1] * (rows.ndim - 1)))
        return replace(left, gram=self.gram - mean_part).settled()

    def _by_class(self, change: Callable[[Tensor], Tensor]) -> Sums:
        grams = None if self.grams is None else change(self.grams)
        return Sums(change(self.counts), change(self.totals), self.gram, grams)

    # Statistics that the heads share.

    @property
    def means(self) -> Tensor:
        """(k, d); 0 for a class without images."""
        return self.totals / self.counts.clamp(min=1)[:, None]

    def within(self) -> Tensor:
        """(d, d): the covariance within classes, pooled. All classes whose images are in the Gram matrix must be present."""
        scatter, freedom = self.scatter(), self.freedom
        if not freedom or scatter.diagonal().sum() <= ROUNDING * self.gram.diagonal().sum():
            return torch.zeros_like(scatter)  # one image of each class, or copies of it: nothing but rounding is left
        return (scatter + scatter.T) / 2 / freedom

    def scatter(self) -> Tensor:
        """(d, d): the sum of products of deviations from the mean of the class."""
        return self.gram - self.totals.T @ self.means

    @property
    def freedom(self) -> int:
        """Images beyond the first of each class."""
        return int(self.counts.sum() - (self.counts > 0).sum())

    # Files.

    def to_tensors(self) -> dict[str, Tensor]:
        """As stored in a file: only the lower triangle of the symmetric Gram matrix, row by row."""
        kept = {"counts": self.counts, "totals": self.totals, "gram": packed(self.gram)}
        return {name: tensor.cpu() for name, tensor in (kept if self.grams is None else {**kept, "grams": self.grams}).items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Sums:
        """Raises ValueError for tensors that cannot be sums of images."""
        counts, totals, gram, grams = (tensors.get(name) for name in ("counts", "totals", "gram", "grams"))
        if counts is None or totals is None or gram is None or any(t.dtype != Exact for t in tensors.values()):
            raise ValueError("its sums are not all there, or of a wrong type")
        k, d = totals.shape if totals.ndim == 2 else (-1, -1)
        if d < 1 or counts.shape != (k,) or gram.shape != (packed_size(d),) or (grams is not None and grams.shape != (k, packed_size(d))):
            raise ValueError("its sums have sizes that do not fit")
        if not all(bool(torch.isfinite(t).all()) for t in tensors.values()) or bool((counts < 0).any() or (counts % 1 != 0).any()):
            raise ValueError("its sums are not finite, or its counts are not counts")
        return cls(counts, totals, unpacked(gram), grams)


@dataclass(frozen=True)
class Linear:
    """A solved head: logits are weights @ features + bias, in float64."""

    weights: Tensor  # (k, d)
    bias: Tensor  # (k,); -inf for a class without images

    def __call__(self, features: Tensor) -> Tensor:
        return exact(features) @ self.weights.T + self.bias


def log_priors(sums: Sums, balance: bool) -> Tensor:
    """(k,): of equally frequent classes with `balance`, else by their numbers of images; -inf for a class without images."""
    counts = (sums.counts > 0).to(Exact) if balance else sums.counts
    return (counts / counts.sum().clamp(min=1)).log()


def packed_bytes(features: int, classes: int) -> int:
    """Bytes of the sums in a file."""
    return 8 * (packed_size(features) + features * classes + classes)


def packed_size(features: int) -> int:
    return features * (features + 1) // 2


def packed(gram: Tensor) -> Tensor:
    """The lower triangle, row by row."""
    rows, columns = torch.tril_indices(len(gram), len(gram), device=gram.device)
    return gram[rows, columns]


def unpacked(triangle: Tensor) -> Tensor:
    d = isqrt(2 * len(triangle))
    gram = triangle.new_zeros(d, d)
    rows, columns = torch.tril_indices(d, d, device=triangle.device)
    gram[rows, columns] = triangle
    gram[columns, rows] = triangle
    return gram
