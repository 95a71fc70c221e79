"""The sums over images from which every closed-form head follows: what a model keeps instead of images.

With features f (d numbers) and classes 0..k-1, they are  counts_c = images of c,  total_c = sum of f over c,  gram = sum of f f' over all.
Sums are added in float64, so the order and the cut of the calls change a head by rounding alone; subtraction takes images out again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

Exact = torch.float64
ROUNDING = 1e-11  # share of the sum of squares that differences of sums may leave


@dataclass(frozen=True)
class Sums:
    """Immutable: every operation returns new sums."""

    counts: Tensor  # (k,)
    totals: Tensor  # (k, d)
    gram: Tensor  # (d, d)

    @classmethod
    def empty(cls, features: int, classes: int = 0) -> Sums:
        sizes = ((classes,), (classes, features), (features, features))
        return cls(*(torch.zeros(size, dtype=Exact) for size in sizes))

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int) -> Sums:
        """The sums of these images alone; labels are 0..classes-1."""
        f = exact(features)
        one_hot = F.one_hot(labels.to(f.device), classes).to(f.dtype)
        return cls(one_hot.sum(0), one_hot.T @ f, f.T @ f)

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
        """Both together; class c is the same class in both, and one of them may know fewer."""
        k = max(self.classes, other.classes)
        a, b = self.with_classes(k), other.with_classes(k)
        return Sums(a.counts + b.counts, a.totals + b.totals, a.gram + b.gram)

    def __sub__(self, other: Sums) -> Sums:
        """Without the images of `other`, as if they had never been there."""
        k = max(self.classes, other.classes)
        a, b = self.with_classes(k), other.with_classes(k)
        counts = a.counts - b.counts
        if bool((counts < 0).any()):
            raise ValueError("more images of a class are taken out than were added")
        totals = (a.totals - b.totals) * (counts > 0)[:, None]  # a class without images leaves no rounding behind
        return Sums(counts, totals, a.gram - b.gram)

    def to(self, device: torch.device) -> Sums:
        return Sums(self.counts.to(device), self.totals.to(device), self.gram.to(device))

    def with_classes(self, classes: int) -> Sums:
        more = classes - self.classes
        return replace(self, counts=F.pad(self.counts, (0, more)), totals=F.pad(self.totals, (0, 0, 0, more))) if more else self

    def take(self, classes: Sequence[int]) -> Sums:
        """The classes in another order, or fewer of them; the Gram matrix stays that of all images."""
        rows = list(classes)
        return replace(self, counts=self.counts[rows], totals=self.totals[rows])

    def placed(self, rows: Sequence[int], classes: int) -> Sums:
        """Class i becomes class rows[i] of so many."""
        counts, totals = self.counts.new_zeros(classes), self.totals.new_zeros(classes, self.features)
        counts[list(rows)], totals[list(rows)] = self.counts, self.totals
        return Sums(counts, totals, self.gram)

    # Statistics that the heads share.

    @property
    def means(self) -> Tensor:
        """(k, d); 0 for a class without images."""
        return self.totals / self.counts.clamp(min=1)[:, None]

    def within(self) -> Tensor:
        """(d, d): the covariance within classes, pooled over them. It must hold all classes whose images are in the Gram matrix."""
        scatter = self.gram - self.totals.T @ self.means
        if scatter.diagonal().sum() <= ROUNDING * self.gram.diagonal().sum():
            return torch.zeros_like(scatter)  # one image of each class, or copies of it: nothing but rounding is left
        freedom = self.counts.sum() - (self.counts > 0).sum()
        return (scatter + scatter.T) / 2 / freedom.clamp(min=1)

    # Files.

    def to_tensors(self) -> dict[str, Tensor]:
        """As a file keeps them: of the Gram matrix, which is symmetric, the lower triangle, row by row."""
        rows, columns = torch.tril_indices(self.features, self.features)
        return {"counts": self.counts.cpu(), "totals": self.totals.cpu(), "gram": self.gram.cpu()[rows, columns]}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Sums:
        """Raises ValueError for tensors that no images could have left."""
        counts, totals, packed = (tensors[name] for name in ("counts", "totals", "gram"))
        if counts.ndim != 1 or totals.ndim != 2 or len(totals) != len(counts) or any(t.dtype != Exact for t in (counts, totals, packed)):
            raise ValueError("its sums have wrong shapes or types")
        d = totals.shape[1]
        if packed.shape != (d * (d + 1) // 2,):
            raise ValueError("its Gram matrix has the wrong size")
        if not all(bool(torch.isfinite(t).all()) for t in (counts, totals, packed)) or bool((counts < 0).any() or (counts % 1 != 0).any()):
            raise ValueError("its sums are not finite, or its counts are not counts")
        gram = torch.zeros(d, d, dtype=Exact)
        rows, columns = torch.tril_indices(d, d)
        gram[rows, columns] = packed
        gram[columns, rows] = packed
        return cls(counts, totals, gram)


@dataclass(frozen=True)
class Linear:
    """A solved head: logits are weights @ features + bias, in float64."""

    weights: Tensor  # (k, d)
    bias: Tensor  # (k,); -inf for a class without images

    def __call__(self, features: Tensor) -> Tensor:
        return exact(features) @ self.weights.T + self.bias


def log_priors(sums: Sums, balance: bool) -> Tensor:
    """(k,): of classes equally frequent with `balance`, else by their images; -inf for a class without images."""
    counts = (sums.counts > 0).to(Exact) if balance else sums.counts
    return (counts / counts.sum().clamp(min=1)).log()


def without_images(sums: Sums) -> Tensor:
    """(k,): 0, or -inf for a class without images, which is never the answer."""
    return torch.where(sums.counts > 0, 0.0, -torch.inf).to(Exact)


def packed_bytes(features: int, classes: int) -> int:
    """Bytes of the sums in a file."""
    return 8 * (features * (features + 1) // 2 + features * classes + classes)


def exact(tensor: Tensor) -> Tensor:
    """In float64; on the CPU where the device has none."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(Exact)
