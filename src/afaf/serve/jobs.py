"""Images that wait to be learned, in memory, and the call that learns them in another process."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from afaf.serve.errors import Refused
from afaf.serve.learner import LearnTask, run
from afaf.serve.limits import RequestLimits
from afaf.streams.sources.source import Pixels

KEPT = 20  # jobs that are remembered
LISTEN_SECONDS = 15.0  # between two keep-alive messages to a listening client


@dataclass
class LearnJob:
    """One call of learn, as clients see it."""

    classes: dict[str, int]  # images by class
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: str = "learning"  # then done, failed or cancelled
    stage: str = "starting"
    unit: str = "images"
    done: int = 0
    total: int = 0
    learned: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.changed, self.began = asyncio.Event(), time.monotonic()

    def tell(self, **news: Any) -> None:
        for name, value in news.items():
            setattr(self, name, value)
        self.seconds = round(time.monotonic() - self.began, 3)
        self.changed.set()
        self.changed = asyncio.Event()  # for the next change

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    async def updates(self) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the state now and after every change, until the end; None if nothing has changed for a while."""
        while True:
            changed = self.changed
            yield self.to_dict()
            if self.state != "learning":
                return
            while not changed.is_set():
                try:
                    async with asyncio.timeout(LISTEN_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield None


class Waiting:
    """Prepared images by class, kept until a call learns them or no image was added for a while."""

    def __init__(self, limits: RequestLimits):
        self.limits, self.images, self.bytes, self.touched = limits, dict[str, list[Pixels]](), 0, 0.0

    def add(self, name: str, images: list[Pixels]) -> None:
        self.expire()
        size = sum(pixels.nbytes for pixels in images)
        if self.bytes + size > self.limits.waiting_bytes:
            raise Refused(413, "too_many", "no more images fit into one call: teach those that wait first, then add the rest")
        self.images.setdefault(name, []).extend(images)
        self.bytes, self.touched = self.bytes + size, time.monotonic()

    def drop(self, name: str) -> None:
        self.bytes -= sum(pixels.nbytes for pixels in self.images.pop(name, []))

    def take(self) -> dict[str, list[Pixels]]:
        self.expire()
        taken, self.images, self.bytes = self.images, {}, 0
        return dict(sorted(taken.items()))

    def expire(self) -> None:
        if time.monotonic() - self.touched > self.limits.waiting_seconds:
            self.images, self.bytes = {}, 0

    def counts(self) -> dict[str, int]:
        self.expire()
        return {name: len(images) for name, images in self.images.items()}


class Learning:
    """A call that a separate process learns; it can be killed at any time."""

    def __init__(self, context: BaseContext, task: LearnTask, images: dict[str, list[Pixels]], job: LearnJob):
        self.task, self.images, self.job = task, images, job
        self.ours, self.theirs = context.Pipe()
        self.process: Any = context.Process(target=run, args=(self.theirs,), daemon=True)  # type: ignore[attr-defined]
        self.cancelled = False
        self.silent = False  # the process has ended without telling whether it learned

    async def run(self) -> None:
        """Send the images to the process, so that the server keeps none, and pass on its progress until it ends."""
        job = self.job
        try:
            await asyncio.to_thread(self._send)
            while job.learned is None and job.error is None:
                news = await asyncio.to_thread(self.ours.recv)
                if "warning" in news:
                    news = {"warnings": [*job.warnings, news["warning"]]}
                job.tell(**news)
        except (EOFError, OSError):  # the process has ended
            words = "cancelled" if self.cancelled else "the process that learned has ended"
            job.tell(error={"type": "cancelled" if self.cancelled else "ended", "message": f"{words}: nothing was learned"})
            self.silent = True
        finally:
            self.images.clear()
            self.cancel()
            await asyncio.to_thread(self.process.join)
            self.ours.close()

    def _send(self) -> None:
        self.process.start()
        self.theirs.close()
        if self.cancelled:
            raise EOFError
        self.ours.send(self.task)
        while self.images:
            self.ours.send_bytes(np.stack(self.images.pop(next(iter(self.images)))).reshape(-1).data)

    def cancel(self) -> None:
        self.cancelled = True
        if self.process.pid is not None:
            self.process.kill()
