"""How far products may be rounded."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]

# cuDNN's better guess at which kernel is fastest, without timing any; PyTorch looks at this once, at the first convolution on a GPU.
os.environ.setdefault("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "1")


class PrecisionFlags:
    """Which fp32 products may be rounded is a setting of the whole process: engines that work side by side share it."""

    def __init__(self) -> None:
        self.lock, self.users, self.before = threading.Lock(), 0, list[bool]()

    @contextlib.contextmanager
    def set(self, name: Precision, device: torch.device) -> Iterator[None]:
        """fp32: none; tf32 and bf16: those of matrices and convolutions, to 19 bits. And only kernels that repeat themselves."""
        if device.type != "cuda":
            yield
            return
        flags: list[tuple[Any, str, bool]] = [
            (torch.backends.cuda.matmul, "allow_tf32", name != "fp32"),
            (torch.backends.cudnn, "allow_tf32", name != "fp32"),
            (torch.backends.cudnn, "benchmark", False),
            (torch.backends.cudnn, "deterministic", True),
        ]
        with self.lock:
            if self.users == 0:
                self.before = [getattr(where, flag) for where, flag, _ in flags]
            self.users += 1
            for where, flag, value in flags:
                setattr(where, flag, value)
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if self.users == 0:
                    for (where, flag, _), value in zip(flags, self.before, strict=True):
                        setattr(where, flag, value)


PRECISION = PrecisionFlags()
