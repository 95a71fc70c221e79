"""The operations on a layer's values, each defined once; the products between layers are in products.py.

An operation defines its torch forward (evaluation and training), its output size, its result for a constant input, and whether a CUDA
kernel can fuse it with its neighbours. No other module asks which operation it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON, MOMENTUM = 1e-5, 0.1  # of batch norm, PyTorch's defaults
Size = Callable[[Tensor], Tensor]  # a(g): torch.square or torch.abs


@dataclass
class Norm:
    """The parameters and running statistics of batch normalisation, one of each per neuron."""

    gain: Tensor
    shift: Tensor
    mean: Tensor
    var: Tensor

    def clone(self) -> Norm:
        return Norm(self.gain.clone(), self.shift.clone(), self.mean.clone(), self.var.clone())

    def part(self, neurons: Tensor) -> Norm:
        return Norm(self.gain[neurons], self.shift[neurons], self.mean[neurons], self.var[neurons])

    def leaf(self, moves: bool) -> Norm:
        """The same values, with gain and shift as leaves of a new autograd graph."""
        return Norm(self.gain.detach().requires_grad_(moves), self.shift.detach().requires_grad_(moves), self.mean, self.var)

    def tensors(self) -> dict[str, Tensor]:
        return {"gain": self.gain, "shift": self.shift, "mean": self.mean, "var": self.var}


class TrainingStep(Protocol):
    """The part of a training step that operations depend on."""

    def batch_statistics(self, layer: int) -> Tensor | bool: ...
    def dropout_factors(self, layer: int, rate: float, h: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class FusedKernel:
    """Operations that CUDA kernels fuse: bias, batch norm, ReLU in this order; or bias, ReLU, dropout, 2x2 max pooling."""

    norm: bool = False
    relu: bool = False
    dropout: float = 0.0
    pool: bool = False


# Operations on a layer's values.


@dataclass(frozen=True)
class Operation:
    """One operation on the values (images, neurons, ...) of a neuron layer."""

    name: ClassVar[str]  # in descriptions and files
    commutes: ClassVar[bool] = False  # f(max x) = max f(x), and f(c x) = c f(x) for c >= 0: it may follow pools and dropout as well
    activates: ClassVar[bool] = False  # the result is the neurons' activation, which candidates are chosen by (Eq. 1)
    has_norm: ClassVar[bool] = False  # it needs a `Norm`
    keeps_order: ClassVar[bool] = False  # it selects values or scales them by numbers >= 0, so ReLU may follow it instead

    @property
    def random(self) -> bool:
        """Whether training draws random numbers here, which makes even a constant vary."""
        return False

    def evaluate(self, h: Tensor, norm: Norm | None = None) -> Tensor:
        raise NotImplementedError

    def train(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        return self.evaluate(h, norm)

    def train_inplace(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        """Like `train`, if no gradients are needed: h may be changed."""
        return self.train(h, norm, layer, step)

    def of_constant(self, value: Tensor, norm: Norm | None) -> Tensor:
        """The result (neurons,) for neurons with one value at every position of every image, if nothing is dropped."""
        return self.evaluate(value[None], norm)[0]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def fused_into(self, kernel: FusedKernel) -> FusedKernel | None:
        """The kernel that also applies this operation, after its own; None if there is none."""
        return None


class ReLU(Operation):
    name, activates, commutes = "relu", True, True

    def evaluate(self, h: Tensor, norm: Norm | None = None) -> Tensor:
        return F.relu(h)

    def train_inplace(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        return F.relu_(h)

    def fused_into(self, kernel: FusedKernel) -> FusedKernel | None:
        return replace(kernel, relu=True) if kernel in (FusedKernel(), FusedKernel(norm=True)) else None


@dataclass(frozen=True)
class Dropout(Operation):
    """Element-wise dropout, keyed by image and neuron."""

    name, keeps_order = "dropout", True
    rate: float = 0.2

    @property
    def random(self) -> bool:
        return self.rate > 0

    def evaluate(self, h: Tensor, norm: Norm | None = None) -> Tensor:
        return h

    def train(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        return h * step.dropout_factors(layer, self.rate, h) if self.random else h

    def train_inplace(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        return h.mul_(step.dropout_factors(layer, self.rate, h)) if self.random else h

    def fused_into(self, kernel: FusedKernel) -> FusedKernel | None:
        return replace(kernel, dropout=self.rate) if kernel == FusedKernel(relu=True) else None


@dataclass(frozen=True)
class MaxPool(Operation):
    """The maximum of each size x size window; leftover rows and columns are ignored."""

    name, keeps_order = "pool", True
    size: int = 2
    stride: int = 2
    padding: int = 0

    def evaluate(self, h: Tensor, norm: Norm | None = None) -> Tensor:
        return F.max_pool2d(h, self.size, self.stride, self.padding)

    def train_inplace(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        """Avoids `max_pool2d`, which also stores the indices of the maxima."""
        if self != MaxPool():
            return self.evaluate(h)
        height, width = h.shape[2] // 2 * 2, h.shape[3] // 2 * 2
        h = torch.maximum(h[:, :, 0:height:2], h[:, :, 1:height:2])
        return torch.maximum(h[..., 0:width:2], h[..., 1:width:2])

    def of_constant(self, value: Tensor, norm: Norm | None) -> Tensor:
        return value

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return windows(height, self.size, self.stride, self.padding), windows(width, self.size, self.stride, self.padding)

    def fused_into(self, kernel: FusedKernel) -> FusedKernel | None:
        return replace(kernel, pool=True) if kernel.relu and not (kernel.norm or kernel.pool) and self == MaxPool() else None


@dataclass(frozen=True)
class MeanPool(Operation):
    """The mean of each size x size window; leftover rows and columns are ignored."""

    name = "mean-pool"
    size: int = 2
    stride: int = 2

    def evaluate(self, h: Tensor, norm: Norm | None = None) -> Tensor:
        return F.avg_pool2d(h, self.size, self.stride)

    def of_constant(self, value: Tensor, norm: Norm | None) -> Tensor:
        return value

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return windows(height, self.size, self.stride, 0), windows(width, self.size, self.stride, 0)


class GlobalMean(Operation):
    """The mean over all positions, whatever the size of the image."""

    name = "global-mean"

    def evaluate(self, h: Tensor, norm: Norm | None = None) -> Tensor:
        return h.mean(dim=(2, 3), keepdim=True)

    def of_constant(self, value: Tensor, norm: Norm | None) -> Tensor:
        return value

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return 1, 1


class BatchNorm(Operation):
    """Batch normalisation, with the batch's statistics where norms move and running statistics elsewhere.

    Statistics are per neuron: some neurons may use the batch's while others use their running ones, which then do not change.
    """

    name, has_norm = "norm", True

    def evaluate(self, h: Tensor, norm: Norm | None = None) -> Tensor:
        return self._normalise(h, norm, training=False)

    def train(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        by_batch = step.batch_statistics(layer)
        if by_batch is False or h.numel() == h.shape[1]:  # a last batch of a single image has no spread
            return self._normalise(h, norm, training=False)
        if by_batch is True:
            return self._normalise(h, norm, training=True)
        assert norm is not None
        assert isinstance(by_batch, Tensor)
        still, moved = (Norm(norm.gain, norm.shift, norm.mean.clone(), norm.var.clone()) for _ in range(2))  # clones that backward reads
        mask = by_batch.bool()
        shaped = mask.reshape(-1, *[1] * (h.dim() - 2))
        result = torch.where(shaped, self._normalise(h, moved, training=True), self._normalise(h, still, training=False))
        with torch.no_grad():
            norm.mean.copy_(torch.where(mask, moved.mean, norm.mean))
            norm.var.copy_(torch.where(mask, moved.var, norm.var))
        return result

    def fused_into(self, kernel: FusedKernel) -> FusedKernel | None:
        return FusedKernel(norm=True) if kernel == FusedKernel() else None

    def _normalise(self, h: Tensor, norm: Norm | None, *, training: bool) -> Tensor:
        assert norm is not None
        return F.batch_norm(h, norm.mean, norm.var, norm.gain, norm.shift, training=training, momentum=MOMENTUM, eps=EPSILON)


OPERATIONS: dict[str, type[Operation]] = {kind.name: kind for kind in (ReLU, Dropout, MaxPool, MeanPool, GlobalMean, BatchNorm)}


def parse_operations(texts: Sequence[str], dropout: float) -> tuple[Operation, ...]:
    """The operations of a layer; raises ValueError if a text does not name one, or one comes twice, which no file may hold."""
    if len(set(texts)) < len(texts):
        raise ValueError(f"an operation comes twice in {', '.join(text[:40] for text in texts)}: leave one out")
    return tuple(parse_operation(text, dropout) for text in texts)


def parse_operation(text: str, dropout: float) -> Operation:
    """The operation that a text names: "relu", or with whole numbers "pool(3,2,1)". Dropout gets the network's rate.

    Raises ValueError if the text does not name an operation.
    """
    match = re.fullmatch(r"([a-z-]+)(?:\((\d{1,4}(?:,\d{1,4})*)\))?", text)
    kind = OPERATIONS.get(match[1]) if match else None
    if match is None or kind is None:
        raise ValueError(f"no operation '{text[:40]}': there are {', '.join(OPERATIONS)}")
    if kind is Dropout:
        return Dropout(dropout)
    numbers = [int(number) for number in match[2].split(",")] if match[2] else []
    if len(numbers) not in (0, len(fields(kind))) or 0 in numbers[:2]:
        raise ValueError(f"operation '{text[:40]}': {match[1]} takes {len(fields(kind))} numbers")
    if kind is MaxPool and numbers and 2 * numbers[2] > numbers[0]:
        raise ValueError(f"operation '{text[:40]}': a pool is padded by at most half its size")
    return kind(*numbers)


def windows(size: int, window: int, stride: int, padding: int) -> int:
    """The number of windows that fit into a padded row."""
    return (size + 2 * padding - window) // stride + 1


def relu_late(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The operations with each ReLU moved behind the pools and dropouts it commutes with: a pool leaves a quarter of the values."""
    ordered: list[Operation] = []
    waiting: list[Operation] = []
    for operation in operations:
        if waiting and not operation.keeps_order:
            ordered.append(waiting.pop())
        (waiting if operation.commutes else ordered).append(operation)
    return (*ordered, *waiting)


def fuse(operations: Sequence[Operation], kernel: FusedKernel) -> tuple[FusedKernel, tuple[Operation, ...]]:
    """The kernel that also applies as many of the operations as possible, and the remaining operations."""
    for done, operation in enumerate(operations):
        more = operation.fused_into(kernel)
        if more is None:
            return kernel, tuple(operations[done:])
        kernel = more
    return kernel, ()
