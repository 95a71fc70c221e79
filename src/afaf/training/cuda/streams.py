"""Streams of a GPU on which work runs beside the current one."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

# Streams of one process that never wait for each other; CUDA looks at this when it begins. Its own 8 are too few for seeds side by side.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

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
        """Wait for what was begun, if anything was: in a capture, a stream that took no part must not be waited for."""
        if self.kept:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.kept.clear()


class Gate:
    """Lets one thread capture while no other thread calls the GPU, for any such call may spoil the capture.

    A thread is `inside` while it may call the GPU. It steps `outside` while it waits for it, so that others need not wait as well.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside_now, self.wanting, self.capturing = 0, 0, False
        self.mine = threading.local()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """For as long as this thread may call the GPU; may be nested."""
        depth = getattr(self.mine, "depth", 0)
        if depth == 0:
            self._enter()
        self.mine.depth = depth + 1
        try:
            yield
        finally:
            self.mine.depth = depth
            if depth == 0:
                self._leave()

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """For as long as this thread only waits."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """The only thread inside. To be called from inside."""
        with self.changed:
            self.inside_now -= 1
            self.wanting += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.capturing and self.inside_now == 0)
            self.wanting -= 1
            self.capturing = True
        try:
            yield
        finally:
            with self.changed:
                self.capturing = False
                self.inside_now += 1
                self.changed.notify_all()

    def _enter(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: not self.capturing and self.wanting == 0)
            self.inside_now += 1

    def _leave(self) -> None:
        with self.changed:
            self.inside_now -= 1
            self.changed.notify_all()


GATE = Gate()
