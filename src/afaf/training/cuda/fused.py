"""The forward pass of a training step on CUDA, with consecutive operations fused, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.network.forward import Observer, Operations, Training
from afaf.network.ops import FusedKernel, Norm, fuse
from afaf.network.spec import Edge
from afaf.training.compact import neurons_last, neurons_second
from afaf.training.cuda.gradients import Activate, Backward, EdgeProduct, FirstConvReLU, Normalise
from afaf.training.cuda.kernels import Draw, can_fuse_first_conv, can_normalise


@dataclass
class FusedNorms(Training):
    """Training on CUDA with PyTorch's operations, except bias, batch norm and the ReLU after it, which are fused."""

    def neurons_above(
        self, edge: Edge, h: Tensor, weight: Tensor, bias: Tensor, operations: Operations, norms: dict[int, Norm], observe: Observer | None
    ) -> Tensor:
        layer, (kernel, rest) = edge.target, fuse(operations, FusedKernel())
        if kernel.norm and self._normalises(layer, len(h), bias):
            h = self.normalise(kernel, layer, neurons_last(edge.forward(h, weight, None)), bias, norms[layer])
            return self.operate(rest, layer, h, norms, observe)
        return super().neurons_above(edge, h, weight, bias, operations, norms, observe)

    def normalise(self, kernel: FusedKernel, layer: int, z: Tensor, bias: Tensor, norm: Norm) -> Tensor:
        """Norm and, if fused, ReLU of z, whose neurons are last."""
        by_batch = self.batch_statistics(layer)
        chosen, cut = by_batch if isinstance(by_batch, Tensor) else None, self.grad_mask.get(layer)
        h: Tensor = Normalise.apply(z, bias, norm.gain, norm.shift, norm, chosen, cut, kernel.relu)  # type: ignore[no-untyped-call]
        return neurons_second(h)

    def _normalises(self, layer: int, images: int, bias: Tensor) -> bool:
        """Whether the batch's statistics are used, and the fused kernel can compute them."""
        return self.batch_statistics(layer) is not False and images > 1 and can_normalise(len(bias), bias.device, bias.dtype)


@dataclass
class Fused(FusedNorms):
    """Training on CUDA with the compute weights, and with the keys of dropout in device memory."""

    without_bias: int | None = None  # the layer whose bias another kernel adds: the output, with a fused loss
    positive: frozenset[int] = frozenset()  # layers whose ReLU is applied before the remaining operations
    seen_by_dense: frozenset[int] = frozenset()  # layers of maps that a dense layer reads
    backward: Backward | None = None

    def neurons_above(
        self, edge: Edge, h: Tensor, weight: Tensor, bias: Tensor, operations: Operations, norms: dict[int, Norm], observe: Observer | None
    ) -> Tensor:
        layer, (kernel, rest) = edge.target, fuse(operations, FusedKernel())
        if kernel.norm and self._normalises(layer, len(h), bias):
            z = self._product(edge, layer - 1, h, weight)
            h = self.normalise(kernel, layer, z, bias, norms[layer])
            return self.operate(rest, layer, h if edge.product.maps else h.flatten(1), norms, observe)
        if kernel.norm or not kernel.relu:  # nothing to fuse; the bias is added in full precision, the product is rounded as usual
            z = self._product(edge, layer - 1, h, weight)
            z = z.flatten(1) if not edge.product.maps else z.permute(0, 3, 1, 2)
            if layer == self.without_bias:
                return z
            z = z + bias.view(-1, *[1] * (z.dim() - 2))
            return super().operate(operations, layer, self.cut(layer, z), norms, observe)
        if layer == 2 and kernel == FusedKernel(relu=True) and edge.product.maps and can_fuse_first_conv(h, weight):
            maps: Tensor = FirstConvReLU.apply(h, weight, bias, self.grad_mask.get(layer), self.backward)  # type: ignore[no-untyped-call]
            return self.operate(rest, layer, maps.permute(0, 3, 1, 2), norms, observe)
        activation = self._activate(kernel, layer, self._product(edge, layer - 1, h, weight), bias)
        return self.operate(rest, layer, activation, norms, observe)

    def operate(self, operations: Operations, layer: int, h: Tensor, norms: dict[int, Norm], observe: Observer | None = None) -> Tensor:
        kernel, rest = fuse(operations, FusedKernel(relu=True))
        if not rest and kernel.pool and layer in self.positive:  # another ReLU changes nothing
            return self._activate(kernel, layer, neurons_last(h), h.new_zeros(h.shape[1], dtype=torch.float32))
        return super().operate(operations, layer, h, norms, observe)

    def _product(self, edge: Edge, l: int, h: Tensor, compute_weight: Tensor) -> Tensor:
        """W_l h, as (images, height, width, neurons); the bias is left to the activation."""
        maps = edge.product.maps
        factor = h.to(compute_weight.dtype).contiguous(memory_format=torch.channels_last) if maps else h.flatten(1).to(compute_weight.dtype)
        z: Tensor = EdgeProduct.apply(factor, compute_weight, maps, l, self.backward)  # type: ignore[no-untyped-call]
        return z if maps else z[:, None, None, :]

    def _activate(self, kernel: FusedKernel, layer: int, z: Tensor, bias: Tensor) -> Tensor:
        draw = None
        if kernel.dropout:
            key = self.keys[layer]
            assert isinstance(key, Tensor)
            draw = Draw(key, self.samples, self.neurons[layer], kernel.dropout)
        h: Tensor = Activate.apply(
            z, bias, self.grad_mask.get(layer), draw, kernel.pool, layer in self.seen_by_dense, layer - 1, self.backward
        )  # type: ignore[no-untyped-call]
        return h.flatten(1) if h.shape[1:3] == (1, 1) and z.shape[1:3] == (1, 1) else h.permute(0, 3, 1, 2)
