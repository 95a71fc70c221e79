"""The operations of a network, each defined once: products that lead from layer to layer, and what happens to a layer's values.

An operation says how torch computes it (evaluating and training), the size of its output, what it makes of a constant, how it is
written as ONNX, and whether a CUDA kernel can join it with its neighbours. No other module asks which operation it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-5  # of batch norm, PyTorch's default
Size = Callable[[Tensor], Tensor]  # a(g): torch.square or torch.abs


@dataclass
class Norm:
    """The numbers of batch normalisation, one of each per neuron."""

    gain: Tensor
    shift: Tensor
    mean: Tensor
    var: Tensor

    def clone(self) -> Norm:
        return Norm(self.gain.clone(), self.shift.clone(), self.mean.clone(), self.var.clone())

    def part(self, neurons: Tensor) -> Norm:
        return Norm(self.gain[neurons], self.shift[neurons], self.mean[neurons], self.var[neurons])

    def leaf(self, moves: bool) -> Norm:
        """The same numbers, with gain and shift as leaves of a new autograd graph."""
        return Norm(self.gain.detach().requires_grad_(moves), self.shift.detach().requires_grad_(moves), self.mean, self.var)

    def tensors(self) -> dict[str, Tensor]:
        return {"gain": self.gain, "shift": self.shift, "mean": self.mean, "var": self.var}


class TrainingStep(Protocol):
    """The part of a training step that operations depend on."""

    @property
    def norm_moves(self) -> bool: ...
    def dropout_factors(self, layer: int, rate: float, h: Tensor) -> Tensor: ...


class OnnxGraph(Protocol):
    """An ONNX graph under construction; values are known by name."""

    def constant(self, name: str, tensor: Tensor | Any) -> str: ...
    def node(self, kind: str, *inputs: str, **attributes: Any) -> str: ...


@dataclass(frozen=True)
class FusedKernel:
    """The operations that one CUDA kernel does in one pass, in this order: add the bias, ReLU, dropout, 2x2 max pooling."""

    relu: bool = False
    dropout: float = 0.0
    pool: bool = False


# What happens to a layer's values.


@dataclass(frozen=True)
class Operation:
    """One operation on the values (images, neurons, ...) of a neuron layer."""

    name: ClassVar[str]  # in descriptions and files
    activates: ClassVar[bool] = False  # the result is the neurons' activation, which candidates are chosen by (Eq. 1)
    has_norm: ClassVar[bool] = False  # it needs a `Norm`
    keeps_order: ClassVar[bool] = False  # it picks values or multiplies them by numbers >= 0, so that ReLU may as well follow it

    @property
    def random(self) -> bool:
        """Whether training draws random numbers here, which makes even a constant vary."""
        return False

    def evaluate(self, h: Tensor, norm: Norm | None = None) -> Tensor:
        raise NotImplementedError

    def train(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        return self.evaluate(h, norm)

    def train_inplace(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        """The same where nobody needs gradients: h may be changed."""
        return self.train(h, norm, layer, step)

    def of_constant(self, value: Tensor, norm: Norm | None) -> Tensor:
        """The result (neurons,) for neurons with one value at every position of every image, if nothing is dropped."""
        return self.evaluate(value[None], norm)[0]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def export(self, graph: OnnxGraph, h: str, norm: Norm | None, layer: int) -> str:
        raise NotImplementedError

    def fused_into(self, kernel: FusedKernel) -> FusedKernel | None:
        """The kernel that does this operation too, after what it does already; None if there is none."""
        return None


class ReLU(Operation):
    name, activates = "relu", True

    def evaluate(self, h: Tensor, norm: Norm | None = None) -> Tensor:
        return F.relu(h)

    def train_inplace(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        return F.relu_(h)

    def export(self, graph: OnnxGraph, h: str, norm: Norm | None, layer: int) -> str:
        return graph.node("Relu", h)

    def fused_into(self, kernel: FusedKernel) -> FusedKernel | None:
        return FusedKernel(relu=True) if kernel == FusedKernel() else None


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

    def export(self, graph: OnnxGraph, h: str, norm: Norm | None, layer: int) -> str:
        return h

    def fused_into(self, kernel: FusedKernel) -> FusedKernel | None:
        return replace(kernel, dropout=self.rate) if kernel == FusedKernel(relu=True) else None


class MaxPool(Operation):
    """The largest of each 2x2 values; a last odd row or column is left out."""

    name, keeps_order = "pool", True

    def evaluate(self, h: Tensor, norm: Norm | None = None) -> Tensor:
        return F.max_pool2d(h, 2)

    def train_inplace(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        """`max_pool2d` would also write down where the maxima were."""
        height, width = h.shape[2] // 2 * 2, h.shape[3] // 2 * 2
        h = torch.maximum(h[:, :, 0:height:2], h[:, :, 1:height:2])
        return torch.maximum(h[..., 0:width:2], h[..., 1:width:2])

    def of_constant(self, value: Tensor, norm: Norm | None) -> Tensor:
        return value

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return height // 2, width // 2

    def export(self, graph: OnnxGraph, h: str, norm: Norm | None, layer: int) -> str:
        return graph.node("MaxPool", h, kernel_shape=[2, 2], strides=[2, 2])

    def fused_into(self, kernel: FusedKernel) -> FusedKernel | None:
        return replace(kernel, pool=True) if kernel.relu and not kernel.pool else None


class BatchNorm(Operation):
    """Batch normalisation: by the batch's statistics where norms move, by the running ones elsewhere."""

    name, has_norm = "norm", True

    def evaluate(self, h: Tensor, norm: Norm | None = None) -> Tensor:
        return self._normalise(h, norm, training=False)

    def train(self, h: Tensor, norm: Norm | None, layer: int, step: TrainingStep) -> Tensor:
        one_value = h.numel() == h.shape[1]  # a last batch of a single image has no spread
        return self._normalise(h, norm, training=step.norm_moves and not one_value)

    def export(self, graph: OnnxGraph, h: str, norm: Norm | None, layer: int) -> str:
        assert norm is not None
        numbers = [graph.constant(f"norm_{layer}_{name}", tensor) for name, tensor in norm.tensors().items()]
        return graph.node("BatchNormalization", h, *numbers, epsilon=EPSILON)

    def _normalise(self, h: Tensor, norm: Norm | None, *, training: bool) -> Tensor:
        assert norm is not None
        return F.batch_norm(h, norm.mean, norm.var, norm.gain, norm.shift, training=training, eps=EPSILON)


OPERATIONS: dict[str, type[Operation]] = {kind.name: kind for kind in (ReLU, Dropout, MaxPool, BatchNorm)}


def relu_late(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The operations with each activation behind those it may as well follow: a pool leaves it a quarter of the values."""
    ordered: list[Operation] = []
    waiting: list[Operation] = []
    for operation in operations:
        if waiting and not operation.keeps_order:
            ordered.append(waiting.pop())
        (waiting if operation.activates else ordered).append(operation)
    return (*ordered, *waiting)


def fuse(operations: Sequence[Operation], kernel: FusedKernel) -> tuple[FusedKernel, tuple[Operation, ...]]:
    """The kernel that does as many of the operations as possible after its own, and the operations that are left."""
    for done, operation in enumerate(operations):
        more = operation.fused_into(kernel)
        if more is None:
            return kernel, tuple(operations[done:])
        kernel = more
    return kernel, ()


# Products: how weights (outputs, inputs, block) lead from one layer to the next.


@dataclass(frozen=True)
class Product:
    """W h + b for weights shaped (outputs, inputs, block)."""

    name: ClassVar[str]  # in descriptions and in the names of layers
    group: ClassVar[Literal["conv", "fc"]]  # which percentages apply to the layer it leads into
    maps: ClassVar[bool]  # it reads and writes maps, not rows of units

    def forward(self, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        raise NotImplementedError

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        raise NotImplementedError

    def block(self, positions: int) -> int:
        """Weights of one connection, from a neuron with so many positions."""
        raise NotImplementedError

    def sample_importance(self, inputs: Tensor, delta: Tensor, size: Size) -> Tensor:
        """Sum over the images of a(gradient of the weights), (outputs, inputs x block), given the gradient `delta` at the result."""
        raise NotImplementedError

    def sample_floats(self, weights: int, unfolded: int) -> int:
        """Numbers that `sample_importance` holds for each image, given the number of weights and of unfolded inputs."""
        return 0

    def export(self, graph: OnnxGraph, h: str, weight: Tensor, bias: Tensor, l: int) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class Convolution(Product):
    """Stride 1, no padding."""

    name, group, maps = "conv", "conv", True
    kernel: int = 3

    def forward(self, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Channels last is the layout that convolutions are fastest with."""
        return F.conv2d(h.contiguous(memory_format=torch.channels_last), self._kernels(weight), bias)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return height - self.kernel + 1, width - self.kernel + 1

    def block(self, positions: int) -> int:
        return self.kernel**2

    def sample_importance(self, inputs: Tensor, delta: Tensor, size: Size) -> Tensor:
        gradients = torch.bmm(delta.flatten(2), F.unfold(inputs, self.kernel).transpose(1, 2))
        return size(gradients).sum(0)

    def sample_floats(self, weights: int, unfolded: int) -> int:
        return weights + unfolded

    def export(self, graph: OnnxGraph, h: str, weight: Tensor, bias: Tensor, l: int) -> str:
        numbers = graph.constant(f"weight_{l}", self._kernels(weight)), graph.constant(f"bias_{l}", bias)
        return graph.node("Conv", h, *numbers, kernel_shape=[self.kernel, self.kernel])

    def _kernels(self, weight: Tensor) -> Tensor:
        return weight.reshape(*weight.shape[:2], self.kernel, self.kernel)


class Dense(Product):
    name, group, maps = "dense", "fc", False

    def forward(self, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(h.flatten(1), weight.flatten(1), bias)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return 1, 1

    def block(self, positions: int) -> int:
        return positions

    def sample_importance(self, inputs: Tensor, delta: Tensor, size: Size) -> Tensor:
        """a(delta x input) = a(delta) a(input), so the sum over images is one product of matrices."""
        return size(delta).T @ size(inputs.flatten(1))

    def export(self, graph: OnnxGraph, h: str, weight: Tensor, bias: Tensor, l: int) -> str:
        numbers = graph.constant(f"weight_{l}", weight.flatten(1)), graph.constant(f"bias_{l}", bias)
        return graph.node("Gemm", graph.node("Flatten", h, axis=1), *numbers, transB=1)
