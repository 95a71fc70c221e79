"""Sums in float64, so that their order hardly matters."""

from __future__ import annotations

import torch
from torch import Tensor

Exact = torch.float64


def exact(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if its device does not support that."""
    return tensor.to(exact_on(tensor.device), Exact)


def exact_on(device: torch.device) -> torch.device:
    """This device, or the CPU if it does not support float64."""
    return torch.device("cpu") if device.type == "mps" else device
