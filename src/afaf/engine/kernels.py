"""Fused element-wise work for CUDA, in Triton: where a chain of small kernels would read the same weights again and again."""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of PyTorch brings no Triton
    triton = None


def can_fuse(weight: Tensor, moving: Tensor) -> bool:
    """One pass for update and importance: on CUDA, in fp32, where connections (not single weights) are owned."""
    return triton is not None and weight.is_cuda and weight.dtype == torch.float32 and moving.shape[2] == 1


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _update(weight_at, gradient_at, moving_at, importance_at, lr, count, block, CONNECTIONS: tl.constexpr, WEIGHTS: tl.constexpr):  # type: ignore[no-untyped-def]
        c = tl.program_id(0) * CONNECTIONS + tl.arange(0, CONNECTIONS)
        b = tl.arange(0, WEIGHTS)
        there = c < count
        inside = there[:, None] & (b < block)[None, :]
        place = c[:, None] * block + b[None, :]
        moving = tl.load(moving_at + c, mask=there, other=0.0)
        gradient = tl.load(gradient_at + place, mask=inside, other=0.0) * moving[:, None]
        weight = tl.load(weight_at + place, mask=inside, other=0.0)
        importance = tl.load(importance_at + c, mask=there, other=0.0)
        tl.store(weight_at + place, weight - lr * gradient, mask=inside)
        tl.store(importance_at + c, importance + lr * tl.sum(gradient * gradient, axis=1), mask=there)


def update_and_weigh(weight: Tensor, gradient: Tensor, moving: Tensor, importance: Tensor, lr: float) -> None:
    """w <- w - lr g where the connection moves, and importance += lr |g|^2 within it: everything in place, in one pass."""
    count, block = weight.shape[0] * weight.shape[1], weight.shape[2]
    weights = triton.next_power_of_2(block)
    connections = max(1, 2048 // weights)
    _update[(triton.cdiv(count, connections),)](weight, gradient.contiguous(), moving, importance, lr, count, block, connections, weights)
