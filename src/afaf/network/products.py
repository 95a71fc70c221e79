"""The products between layers, each defined once: weights (outputs, inputs, block) lead from one layer to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.network.ops import Size, windows


@dataclass(frozen=True)
class Product:
    """W h + b for weights shaped (outputs, inputs, block)."""

    role: ClassVar[Literal["conv", "fc"]]  # which percentages apply to the layer it leads into
    maps: ClassVar[bool]  # it reads and writes maps, not rows of units
    diagonal: ClassVar[bool] = False  # neuron i leads into neuron i alone, which is the same neuron: weights are (neurons, 1, block)
    groups: int = field(default=1, kw_only=True)  # parts of the inputs and of the outputs; only part i leads into part i

    @property
    def plain(self) -> bool:
        """Whether the CUDA kernels support it and a constant input gives a constant output at every position."""
        return True

    def forward(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        raise NotImplementedError

    def block(self, positions: int) -> int:
        """Weights of one connection from a neuron with this many positions."""
        raise NotImplementedError

    def sample_importance(self, inputs: Tensor, delta: Tensor, size: Size) -> Tensor:
        """Sum over the images of a(gradient of the weights), (outputs, inputs x block), given the gradient `delta` at the result."""
        raise NotImplementedError

    def weights_of(self, kernels: Tensor) -> Tensor:
        """The weights that a torch module holds, (outputs, inputs / groups, ...), with 0 between groups."""
        return kernels

    def sample_floats(self, weights: int, unfolded: int) -> int:
        """Numbers that `sample_importance` holds for each image, given the number of weights and of unfolded inputs."""
        return 0


@dataclass(frozen=True)
class Convolution(Product):
    role, maps = "conv", True
    kernel: int = 3
    stride: int = 1
    padding: int = 0  # zeros around the maps

    @property
    def plain(self) -> bool:
        return self.stride == 1 and self.padding == 0 and self.groups == 1 and not self.diagonal

    def forward(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolutions are fastest with channels_last."""
        h = h.contiguous(memory_format=torch.channels_last)
        groups = len(weight) if self.diagonal else self.groups
        return F.conv2d(h, self._kernels(weight), bias, self.stride, self.padding, groups=groups)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        window = (self.kernel, self.stride, self.padding)
        return windows(height, *window), windows(width, *window)

    def block(self, positions: int) -> int:
        return self.kernel**2

    def sample_importance(self, inputs: Tensor, delta: Tensor, size: Size) -> Tensor:
        unfolded = F.unfold(inputs, self.kernel, padding=self.padding, stride=self.stride)
        by_group = [t.reshape(len(t) * self.groups, -1, t.shape[-1]) for t in (delta.flatten(2), unfolded)]
        gradients = torch.bmm(by_group[0], by_group[1].transpose(1, 2)).reshape(*delta.shape[:2], -1)
        return self.weights_of(size(gradients).sum(0)).flatten(1)

    def weights_of(self, kernels: Tensor) -> Tensor:
        g = self.groups
        apart = torch.eye(g, dtype=kernels.dtype, device=kernels.device).view(g, 1, g, 1)
        return (apart * kernels.reshape(g, -1, 1, kernels[0].numel())).reshape(len(kernels), -1, self.kernel**2)

    def sample_floats(self, weights: int, unfolded: int) -> int:
        return weights + unfolded

    def _kernels(self, weight: Tensor) -> Tensor:
        if self.groups > 1:
            blocks = weight.unflatten(1, (self.groups, -1)).unflatten(0, (self.groups, -1))
            weight = blocks.diagonal(dim1=0, dim2=2).movedim(-1, 0).flatten(0, 1)
        return weight.reshape(*weight.shape[:2], self.kernel, self.kernel)


@dataclass(frozen=True)
class Depthwise(Convolution):
    """Each map has a kernel of its own."""

    diagonal = True

    def sample_importance(self, inputs: Tensor, delta: Tensor, size: Size) -> Tensor:
        unfolded = F.unfold(inputs, self.kernel, padding=self.padding, stride=self.stride).unflatten(1, (inputs.shape[1], -1))
        return size(torch.einsum("bnp,bnkp->bnk", delta.flatten(2), unfolded)).sum(0)

    def sample_floats(self, weights: int, unfolded: int) -> int:
        return weights + unfolded * weights // self.kernel**2


class Dense(Product):
    role, maps = "fc", False

    def forward(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(h.flatten(1), weight.flatten(1), bias)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return 1, 1

    def block(self, positions: int) -> int:
        return positions

    def sample_importance(self, inputs: Tensor, delta: Tensor, size: Size) -> Tensor:
        """a(delta x input) = a(delta) a(input), so the sum over images is one matrix product."""
        return size(delta).T @ size(inputs.flatten(1))
