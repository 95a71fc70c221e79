"""CUDA streams for concurrent work, and the lock that keeps other threads off the GPU during a capture."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class _Streams(threading.local):
    def __init__(self) -> None:
        self.streams: dict[tuple[str, torch.device], torch.cuda.Stream] = {}


_STREAMS = _Streams()


def stream_for(purpose: str, device: torch.device) -> torch.cuda.Stream:
    """This thread's stream for a purpose. PyTorch has a pool of only 32 streams, so a thread must not take a new one for every task."""
    if (purpose, device) not in _STREAMS.streams:
        _STREAMS.streams[purpose, device] = torch.cuda.Stream(device)
    return _STREAMS.streams[purpose, device]


class SideStream:
    """Runs work on a side stream; its inputs stay referenced until `join`, so that their memory is not reused before."""

    def __init__(self, device: torch.device):
        self.stream = stream_for("side", device)
        self.kept: list[object] = []

    def do(self, work: Callable[[], T], *reads: Tensor) -> T:
        """Start some work after everything queued so far on the current stream."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = work()
        self.kept += [*reads, result]
        return result

    def join(self) -> None:
        """Let the current stream wait for the side stream, if it was used: a capture must not wait for a stream outside of it."""
        if self.kept:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.kept.clear()


class CaptureLock:
    """Lets one thread capture a CUDA graph while no other thread calls the GPU, since any such call may break the capture.

    A thread holds the lock `shared` while it may call the GPU, and has it `released` while it only waits for the GPU.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.holders, self.waiting, self.capturing = 0, 0, False
        self.mine = threading.local()  # `depth` of nested `shared` blocks, and whether this thread `holds` the lock now

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock together with other threads; may be nested."""
        depth = getattr(self.mine, "depth", 0)
        if depth == 0:
            self._acquire()
        self.mine.depth = depth + 1
        try:
            yield
        finally:
            self.mine.depth = depth
            if depth == 0:
                self._release()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Give the lock up for the duration of the block, which must not call the GPU."""
        self._release()
        try:
            yield
        finally:
            self._acquire()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Be the only thread that holds the lock. Call it within `shared`."""
        self._release()
        with self.changed:
            self.waiting += 1
            try:
                self.changed.wait_for(lambda: not self.capturing and self.holders == 0)
                self.capturing = True
            finally:  # an interrupted wait must not leave the lock closed
                self.waiting -= 1
                self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self.capturing = False
                self.holders += 1
                self.mine.holds = True
                self.changed.notify_all()

    def _acquire(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: not self.capturing and self.waiting == 0)
            self.holders += 1
            self.mine.holds = True

    def _release(self) -> None:
        """Release the lock; no effect if this thread does not hold it because its wait was interrupted."""
        with self.changed:
            if getattr(self.mine, "holds", False):
                self.holders -= 1
                self.mine.holds = False
            self.changed.notify_all()


CAPTURE_LOCK = CaptureLock()
