"""The autograd functions of a step on CUDA: products, the first convolution, activations, norms, cross-entropy.

With plain SGD and no clipping, gradients of weights are computed on a side stream and applied at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.network.ops import Norm
from afaf.training.compact import neurons_last
from afaf.training.cuda.kernels import (
    Draw,
    LossBuffers,
    Move,
    activate,
    add_up,
    deactivate,
    first_conv,
    first_conv_backward,
    move_bias,
    normalise,
    normalise_backward,
)
from afaf.training.cuda.kernels.cross_entropy import fused_cross_entropy
from afaf.training.cuda.streams import SideStream


class Mover(Protocol):
    """Updates weights and biases as soon as their gradients are known."""

    def move(self, l: int, gradient: Tensor) -> None: ...
    def learn(self, l: int, above: Tensor, h: Tensor) -> None: ...
    def move_of(self, l: int) -> Move: ...


@dataclass(frozen=True)
class Backward:
    """Which gradients of weights and biases are computed on the side stream and applied as soon as they are known."""

    side_stream: SideStream
    work: Mover
    weights: frozenset[int]  # l of the W_l that are updated at once
    biases: frozenset[int]


class EdgeProduct(torch.autograd.Function):
    """h times compute weights: rows of neurons, or (`maps`) maps, channels last."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, compute_weight: Tensor, maps: bool, l: int, backward: Backward | None) -> Tensor:
        ctx.save_for_backward(h, compute_weight)
        ctx.maps, ctx.l, ctx.way = maps, l, backward
        return neurons_last(F.conv2d(h, _kernels(compute_weight))) if maps else F.linear(h, compute_weight.flatten(1))

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:  # type: ignore[override]
        h: Tensor
        compute_weight: Tensor
        h, compute_weight = ctx.saved_tensors
        above = above.contiguous()

        def weights() -> Tensor:
            if ctx.maps:
                return _convolution_backward(above, h, compute_weight, [False, True, False])[1].flatten(2)
            return (above.t() @ h).view(compute_weight.shape)

        def below() -> Tensor:
            if ctx.maps:
                return _convolution_backward(above, h, compute_weight, [True, False, False])[0]
            return above @ compute_weight.flatten(1)

        need_below, need_weights = ctx.needs_input_grad[:2]
        way: Backward | None = ctx.way
        if way is None or ctx.l not in way.weights or not need_weights:
            return below() if need_below else None, weights() if need_weights else None, None, None, None
        if not ctx.maps and compute_weight.shape[2] == 1:
            passed = below() if need_below else None
            way.side_stream.do(lambda: way.work.learn(ctx.l, above, h), above, h)  # begins when `below` has read the weights
            return passed, None, None, None, None
        gradient = way.side_stream.do(weights, above, h)
        passed = below() if need_below else None
        way.side_stream.do(lambda: way.work.move(ctx.l, gradient))
        return passed, None, None, None, None


class FirstConvReLU(torch.autograd.Function):
    """The first layer's maps of images: convolution, bias and ReLU, as (images, height, width, maps)."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, compute_weight: Tensor, bias: Tensor, grad_mask: Tensor | None, backward: Backward | None
    ) -> Tensor:
        h = first_conv(images, compute_weight, bias)
        ctx.save_for_backward(images, compute_weight, h, grad_mask)
        ctx.way = backward
        return h

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[None, Tensor | None, Tensor | None, None, None]:  # type: ignore[override]
        images, compute_weight, h, grad_mask = ctx.saved_tensors
        way: Backward | None = ctx.way
        if way is None or 1 not in way.weights:
            weights, biases = first_conv_backward(images, compute_weight, above, h, grad_mask)
            return None, weights.to(compute_weight.dtype), biases, None, None

        def learn() -> None:
            weights, biases = first_conv_backward(images, compute_weight, above, h, grad_mask)
            way.work.move(1, weights)
            if 1 in way.biases:
                move_bias(way.work.move_of(1), biases[None])

        way.side_stream.do(learn, above, h, images)
        return None, None, None, None, None


class Activate(torch.autograd.Function):
    """Bias, ReLU, dropout and pool of (images, height, width, neurons); no gradient through neurons where `grad_mask` is 0."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        bias: Tensor,
        grad_mask: Tensor | None,
        draw: Draw | None,
        pool: bool,
        by_neuron: bool,
        l: int,
        backward: Backward | None,
    ) -> Tensor:
        h, winner = activate(z, bias, draw, pool, by_neuron)
        ctx.save_for_backward(winner, grad_mask)
        ctx.pool, ctx.shape, ctx.scale = pool, z.shape, 1.0 if draw is None else 1 / (1 - draw.rate)
        ctx.l, ctx.way = l, backward
        return h

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor | None, None, None, None, None, None, None]:  # type: ignore[override]
        saved, grad_mask = ctx.saved_tensors
        way: Backward | None = ctx.way
        move = None if way is None or ctx.l not in way.biases else way.work.move_of(ctx.l)
        below, parts = deactivate(above, saved, grad_mask, ctx.scale, ctx.pool, ctx.shape, move)
        if way is None or move is None:
            gradient = add_up(parts) if parts is not None and ctx.needs_input_grad[1] else None
            return below, gradient, None, None, None, None, None, None
        if parts is not None:
            way.side_stream.do(lambda: move_bias(move, parts), parts)
        return below, None, None, None, None, None, None, None


class Normalise(torch.autograd.Function):
    """Bias, batch norm and perhaps ReLU of (images, height, width, neurons); no gradient through neurons where `grad_mask` is 0."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        bias: Tensor,
        gain: Tensor,
        shift: Tensor,
        running: Norm,
        by_batch: Tensor | None,
        cut: Tensor | None,
        relu: bool,
    ) -> Tensor:
        result = normalise(z, bias, running, by_batch, relu)
        ctx.save_for_backward(z, result.used, gain, shift, by_batch, cut)
        ctx.relu = relu
        return result.h

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        z, used, gain, shift, by_batch, cut = ctx.saved_tensors
        below, small = normalise_backward(above.contiguous(), z, used, gain, shift, by_batch, cut, ctx.relu)
        of_shift, of_gain, of_bias = small
        return below, of_bias, of_gain, of_shift, None, None, None, None


class FusedCrossEntropy(torch.autograd.Function):
    """Cross-entropy of the output's products and biases; the loss is stored in the buffers, so the tensor returned holds no value."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, labels: Tensor, buffers: LossBuffers) -> Tensor:
        ctx.save_for_backward(*fused_cross_entropy(z, bias, labels, buffers))  # the latter is None if the biases were moved at once
        return z.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor | None, None, None]:  # type: ignore[override]
        gradient, bias_gradient = ctx.saved_tensors
        return gradient, bias_gradient, None, None


def _kernels(compute_weight: Tensor) -> Tensor:
    size = math.isqrt(compute_weight.shape[2])
    return compute_weight.view(*compute_weight.shape[:2], size, size)


def _convolution_backward(above: Tensor, h: Tensor, compute_weight: Tensor, wanted: list[bool]) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        above.permute(0, 3, 1, 2), h, _kernels(compute_weight), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted
    )
    return gradients
