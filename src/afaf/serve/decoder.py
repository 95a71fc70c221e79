"""Decode image files in separate processes: a file that takes too long, or crashes the decoder, ends only its process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import BaseContext

from afaf.encoders.encoder import prepare
from afaf.encoders.identity import Preprocessing
from afaf.errors import DataError
from afaf.serve.errors import Refused
from afaf.streams.own import with_channels
from afaf.streams.sources.images import decode_image
from afaf.streams.sources.source import Pixels

MEMORY = 4 << 30  # bytes of data that a decoder may hold; the reader's own limits keep it far below
Reading = Preprocessing | tuple[int, int]  # preprocessing of an encoder, or side and channels of a network's images


def processes() -> BaseContext:
    """A context whose processes start at once: they are forked from one that has PyTorch imported and no threads."""
    if sys.platform == "win32":
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["afaf.serve.learner", "afaf.serve.decoder"])
    return context


def end_with_parent() -> None:
    """End this process when the server ends, even if it is killed; ignore Ctrl-C, which the server handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def decode(data: bytes, reading: Reading, name: str, seconds: float) -> Pixels:
    """The pixels that a model reads, (height, width, channels); the process is killed after `seconds` of processor time."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal, SIGPROF, is not handled and ends the process
    try:
        if isinstance(reading, Preprocessing):
            pixels: Pixels = prepare(decode_image(data, None, name)[None], reading)[0]
        else:
            pixels = with_channels(decode_image(data, reading[0], name)[None], reading[1])[0]
        return pixels
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)


def _begin() -> None:
    end_with_parent()
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


class Decoders:
    """A few processes, each with one image at a time."""

    def __init__(self, count: int, seconds: float):
        self.seconds, self.context = seconds, processes()
        self.idle: asyncio.LifoQueue[ProcessPoolExecutor] = asyncio.LifoQueue()
        for _ in range(count):
            self.idle.put_nowait(self._new())

    async def warm(self) -> None:
        """Start a process before it is needed, and with it the one that all are forked from."""
        with contextlib.suppress(DataError, Refused):
            await self.decode(b"", (1, 1), "")

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, self.context, _begin)

    async def decode(self, data: bytes, reading: Reading, name: str) -> Pixels:
        """Raises DataError if it is not an image, Refused if it takes too long."""
        pool = await self.idle.get()
        try:
            return await asyncio.wrap_future(pool.submit(decode, data, reading, name, self.seconds))
        except BrokenProcessPool:
            pool.shutdown(wait=False)
            pool = self._new()
            raise Refused(422, "data", f"{name}: takes more than {self.seconds:g} seconds to decode, or cannot be") from None
        finally:
            self.idle.put_nowait(pool)

    def close(self) -> None:
        """End the idle processes, and wait for it: a pool that is still ending when Python exits prints an error."""
        while not self.idle.empty():
            self.idle.get_nowait().shutdown(cancel_futures=True)
