"""Streams of a GPU on which work runs beside the current one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class _Lanes(threading.local):
    def __init__(self) -> None:
        self.streams: dict[tuple[str, torch.device], torch.cuda.Stream] = {}


_LANES = _Lanes()


def lane(purpose: str, device: torch.device) -> torch.cuda.Stream:
    """This thread's stream for a purpose. PyTorch has 32 of them altogether: a thread must not use a new one for every task."""
    if (purpose, device) not in _LANES.streams:
        _LANES.streams[purpose, device] = torch.cuda.Stream(device)
    return _LANES.streams[purpose, device]


class Beside:
    """Work that what follows does not wait for. What it reads is kept until the streams join, lest its memory be given away before."""

    def __init__(self, device: torch.device):
        self.stream = lane("beside", device)
        self.kept: list[object] = []

    def do(self, work: Callable[[], T], *reads: Tensor) -> T:
        """Begin some work once what is under way is done."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = work()
        self.kept += [*reads, result]
        return result

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self.stream)
        self.kept.clear()
