"""How far products may be rounded."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, Literal

import torch

from afaf.training.cuda.streams import GATE

Precision = Literal["fp32", "tf32", "bf16"]

# cuDNN's better guess at which kernel is fastest, without timing any; PyTorch looks at this once, at the first convolution on a GPU.
os.environ.setdefault("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "1")


FLAGS: tuple[tuple[Any, str], ...] = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
)


class PrecisionFlags:
    """Which fp32 products may be rounded is a setting of the whole process: runs side by side share it.

    A run sets it for as long as it lasts, evaluation included, so that nothing it computes depends on what runs beside it; one that wants
    it otherwise waits.
    """

    def __init__(self) -> None:
        self.changed, self.users, self.rounded, self.before = threading.Condition(), 0, False, list[bool]()
        self.mine = threading.local()

    @contextlib.contextmanager
    def set(self, name: Precision, device: torch.device) -> Iterator[None]:
        """fp32: none; tf32 and bf16: those of matrices and convolutions, to 19 bits. And only kernels that repeat themselves."""
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


@contextlib.contextmanager
def at_work(precision: Precision, device: torch.device) -> Iterator[None]:
    """For as long as this thread computes there: in this precision, then inside the gate, which must not be held by one that waits.

    Kernels and streams are those of the thread's current device, so that this is the one.
    """
    current = torch.cuda.device(device) if device.type == "cuda" and device.index is not None else contextlib.nullcontext()
    with PRECISION.set(precision, device), GATE.inside(), current:
        yield
