"""Triton, if it is installed: CPU builds of PyTorch come without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = ["available", "jit", "like", "mix", "rounding", "tl", "triton"]


def available(device: torch.device) -> bool:
    """Whether kernels can run on this device."""
    return triton is not None and device.type == "cuda"


def jit(kernel: Callable[..., Any]) -> Any:
    """A function to be compiled for the GPU when it is first called."""
    return kernel if triton is None else triton.jit(kernel)


def rounding() -> str:
    """How products of fp32 numbers may be rounded, as Triton calls it."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def like(weight: Tensor, tensor: Tensor) -> Tensor:
    """The tensor with the same memory order as a weight of its shape."""
    return tensor if tensor.stride() == weight.stride() else torch.empty_like(weight, dtype=tensor.dtype).copy_(tensor)


@jit
def mix(x):  # type: ignore[no-untyped-def]
    """randomness.mix, on unsigned integers."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x
