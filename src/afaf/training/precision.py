"""The precision of matrix products: on a GPU fp32, tf32 or bf16; on a CPU bf16 if it has instructions for it, else fp32."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch

from afaf.training.cuda.streams import CAPTURE_LOCK

Precision = Literal["fp32", "tf32", "bf16"]


FLAGS: tuple[tuple[Any, str], ...] = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
)


class PrecisionFlags:
    """PyTorch's flags for rounding fp32 products, which concurrent runs share because they hold for the whole process.

    A run sets them for its whole duration, evaluation included, so that its results do not depend on other runs; a run that needs another
    value waits.
    """

    def __init__(self) -> None:
        self.changed, self.users, self.rounded, self.before = threading.Condition(), 0, False, list[bool]()
        self.mine = threading.local()

    @contextlib.contextmanager
    def set(self, name: Precision, device: torch.device) -> Iterator[None]:
        """tf32 and bf16: fp32 matrix products and convolutions are rounded to 19 bits. Always: deterministic kernels only."""
        rounded, outer = name != "fp32", getattr(self.mine, "rounded", None)
        if device.type != "cuda" or outer is not None:
            assert outer in (None, rounded), "a run has one precision"
            yield
            return
        with self.changed:
            self.changed.wait_for(lambda: self.users == 0 or self.rounded == rounded)
            if self.users == 0:
                self.before, self.rounded = [getattr(where, flag) for where, flag in FLAGS], rounded
                self._write([rounded, rounded, False, True])
            self.users += 1
        self.mine.rounded = rounded
        try:
            yield
        finally:
            self.mine.rounded = None
            with self.changed:
                self.users -= 1
                if self.users == 0:
                    self._write(self.before)
                    self.changed.notify_all()

    def _write(self, values: list[bool]) -> None:
        for (where, flag), value in zip(FLAGS, values, strict=True):
            setattr(where, flag, value)


PRECISION = PrecisionFlags()
CPU_BF16 = ("avx512_bf16", "amx_bf16", "bf16")  # instructions; the last on ARM


def precision_on(precision: Precision, device: torch.device, engine: str) -> Precision:
    """The precision that products of a training step really have: bf16 needs an engine for it and, on a CPU, instructions for it."""
    if device.type == "cuda":
        return "tf32" if precision == "bf16" and engine != "graphed" else precision
    return "bf16" if precision == "bf16" and engine == "compact" and device.type == "cpu" and computes_bf16() else "fp32"


def computes_bf16() -> bool:
    """Whether this CPU has instructions for bf16; without them, it would take longer than in fp32."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # some versions of PyTorch cannot tell
    return any(map(capabilities.get, CPU_BF16))


def cpu_autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Compute products in bf16 on a CPU that has instructions for it; does nothing otherwise, on a GPU in particular."""
    return torch.autocast("cpu", torch.bfloat16, enabled=device.type == "cpu" and precision == "bf16" and computes_bf16())


def configure_cuda() -> None:
    """Settings of CUDA and PyTorch for training; they take effect if this is called before the first use of the GPU."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # CUDA's 8 queues are too few for concurrent seeds
    os.environ.setdefault("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "1")  # cuDNN's better guess of the fastest kernel, without timing any
    # Autograd's threads initialise CUDA at their first product and warn about it: a user can do nothing about that.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context", UserWarning)


@contextlib.contextmanager
def at_work(precision: Precision, device: torch.device) -> Iterator[None]:
    """Compute on a device in this precision, with the capture lock held; the lock comes last, since a waiting thread must not hold it.

    The device becomes the thread's current one, which kernels and streams use.
    """
    if device.type == "cuda":
        configure_cuda()
    current = torch.cuda.device(device) if device.type == "cuda" and device.index is not None else contextlib.nullcontext()
    with PRECISION.set(precision, device), CAPTURE_LOCK.shared(), current:
        yield
