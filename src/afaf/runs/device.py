"""Which device a run uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from afaf.errors import DeviceError
from afaf.network.spec import NetworkSpec

WORTH_SHARING = 1e8  # multiplications of a step from which several threads are faster than one


def find_device(name: str) -> torch.device:
    """`auto` is a CUDA GPU if there is one, else the CPU; any other name must be a device that is there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"'{name}' is not a device: use auto, cpu, cuda, cuda:1 or mps") from None
    there = {
        "cpu": device.index in (None, 0),
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(device.type, False):
        raise DeviceError(f"device '{name}' is not there: use --device auto or cpu")
    return device


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextlib.contextmanager
def suitable_threads(spec: NetworkSpec, batch_size: int) -> Iterator[None]:
    """One CPU thread for networks too small to share out, as many as PyTorch thinks best for others; restored afterwards."""
    before = torch.get_num_threads()
    work = batch_size * sum(join.weights * join.positions for join in spec.joins)
    try:
        if work < WORTH_SHARING:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)
