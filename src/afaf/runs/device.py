"""The device a run uses, and the number of CPU threads."""

from __future__ import annotations

import contextlib
import threading

import torch

from afaf.errors import DeviceError
from afaf.network.spec import NetworkSpec
from afaf.training.precision import configure_cuda

WORTH_SHARING = 1e8  # multiplications in a step above which several threads are faster than one


def find_device(name: str) -> torch.device:
    """`auto` is a CUDA GPU if there is one, else the CPU; any other name must be an available device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"'{name}' is not a device: use auto, cpu, cuda, cuda:1 or mps") from None
    available = {
        "cpu": device.index in (None, 0),
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available.get(device.type, False):
        raise DeviceError(f"device '{name}' is not available: use --device auto or cpu")
    if device.type == "cuda":
        configure_cuda()  # before the first tensor is created on it
    return device


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


class _SingleThread:
    """Sets the number of threads to 1 for overlapping blocks, and restores the number from before the first block."""

    def __init__(self) -> None:
        self.lock, self.users, self.before = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self.lock:
            if self.users == 0:
                self.before = torch.get_num_threads()
            self.users += 1
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1
            torch.set_num_threads(self.before)  # of this thread: others keep theirs until their own blocks end


_SINGLE_THREAD = _SingleThread()


def suitable_threads(spec: NetworkSpec, batch_size: int) -> contextlib.AbstractContextManager[None]:
    """Use one CPU thread for networks too small to benefit from several, else PyTorch's default; restored afterwards."""
    work = batch_size * spec.dense_products
    return _SINGLE_THREAD if work < WORTH_SHARING else contextlib.nullcontext()
