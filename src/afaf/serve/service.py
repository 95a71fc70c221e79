"""The served model. Every change is written to the model file first; then the new model replaces the old one."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from afaf.encoders.encoder import Encoder
from afaf.encoders.find import find_encoder
from afaf.errors import RunError
from afaf.lifelong.encoded import EncodedModel
from afaf.lifelong.model_store import AnyModel, check_place, checksum_of, load_any, replace_model, undo_change, undo_of
from afaf.runs.device import find_device
from afaf.serve.decoder import Decoders, Reading
from afaf.serve.errors import Refused
from afaf.serve.jobs import KEPT, Learning, LearnJob, Waiting
from afaf.serve.learner import NICE, LearnTask, learned
from afaf.serve.limits import RequestLimits
from afaf.serve.models import NOTHING, Served, ready
from afaf.serve.predictor import Predictor
from afaf.streams.own import DEFAULT_SIZE

T = TypeVar("T")
log = logging.getLogger("uvicorn.error")


@dataclass(frozen=True)
class ServeOptions:
    encoder: str | None = None  # of a new model; None: a network is trained
    device: str = "cpu"
    read_only: bool = False
    token: str | None = None
    hosts: tuple[str, ...] = ()
    limits: RequestLimits = field(default_factory=RequestLimits)


class Service:
    def __init__(self, path: Path, options: ServeOptions):
        self.path, self.options, self.limits = path, options, options.limits
        self.device = find_device(options.device)
        self.encoder: Encoder | None = None
        self.served: Served | None = None
        self.jobs: OrderedDict[str, LearnJob] = OrderedDict()
        self.waiting = Waiting(self.limits)
        self.learning: Learning | None = None
        self.call: asyncio.Task[None] | None = None
        self.outcomes = {"done": 0, "failed": 0, "cancelled": 0}
        if not options.read_only:
            check_place(path)
        self.served = self._load()
        if self.served is None and options.encoder is not None:
            self.encoder = find_encoder(options.encoder, self.device)

    async def start(self) -> None:
        """Start the processes and threads that need the event loop."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.decoders = Decoders(min(cores, 4), self.limits.decode_seconds)
        self.predictor = Predictor(cores if self.device.type == "cpu" else 1, self.limits.queued_images)
        self.background = ThreadPoolExecutor(1, "change", _in_background)
        self.changing = asyncio.Lock()
        self.warming = asyncio.create_task(self.decoders.warm())

    async def stop(self) -> None:
        await self.cancel()
        for each in (self.decoders, self.predictor):
            each.close()
        self.background.shutdown(wait=False)

    # Asking.

    @property
    def reading(self) -> Reading:
        """How images are prepared: for the served model, or for the one that the first call will make."""
        if self.served is not None:
            return self.served.reading
        return (DEFAULT_SIZE, 3) if self.encoder is None else self.encoder.identity.preprocessing

    async def decode(self, files: list[bytes]) -> list[Any]:
        reading = self.reading
        named = [f"image {number}" for number in range(1, len(files) + 1)]
        decoded = await asyncio.gather(
            *(self.decoders.decode(data, reading, name) for data, name in zip(files, named, strict=True)), return_exceptions=True
        )
        for each in decoded:
            if isinstance(each, BaseException):
                raise each
        return decoded

    async def predict(self, files: list[bytes], top: int, unknown_below: float) -> list[dict[str, Any]]:
        served = self.taught()
        places = await self.predictor.ask(served, await self.decode(files))
        return [served.describe(answers, row, top, unknown_below) for answers, row in places]

    def taught(self) -> Served:
        if self.served is None:
            raise Refused(409, "nothing_taught", "the model knows no class yet: teach it one")
        return self.served

    def about(self) -> dict[str, Any]:
        """The facts about the model that the page shows."""
        served, encoder = self.served, self.options.encoder
        if served is not None:
            encoder = None if served.model.identity is None else served.model.identity.name
        return {
            "model": self.path.name,
            "encoder": encoder,
            "learns": served is None or served.model.learns,
            **(NOTHING if served is None else served.summary),
            "waiting": self.waiting.counts(),
            "undo": not self.options.read_only and served is not None and served.undo,
            "read_only": self.options.read_only,
            "learning": next((job.id for job in reversed(self.jobs.values()) if job.state == "learning"), None),
        }

    # Changing.

    async def add(self, name: str, files: list[bytes]) -> int:
        """Keep images of a class for the next call of learn; returns how many of the class wait."""
        counts = self.waiting.counts()
        labels = set(counts) | {name}
        known = set() if self.served is None else set(self.served.labels)
        if len(labels | known) > self.limits.classes:
            raise Refused(409, "too_many_classes", f"a model that is served has at most {self.limits.classes} classes")
        if self.served is not None and not isinstance(self.served.model, EncodedModel):
            self.served.model.check_new(labels)
        self.waiting.add(name, await self.decode(files))
        return len(self.waiting.images[name])

    async def learn(self) -> LearnJob:
        """Begin to learn all waiting images, in another process."""
        self._check_not_learning()
        if self.changing.locked():  # the call would begin from a model that is about to be replaced
            raise Refused(409, "changing", "a class is being renamed or removed, or a change undone: ask again in a moment")
        images = self.waiting.take()
        if not images:
            raise Refused(409, "nothing_waits", "no image waits to be learned: send images of a class first")
        counts = {name: len(some) for name, some in images.items()}
        shape: Any = next(iter(images.values()))[0].shape
        before = None if self.served is None else self.served.checksum
        job = LearnJob(counts, total=sum(counts.values()))
        self.jobs[job.id] = job
        while len(self.jobs) > KEPT:
            self.jobs.popitem(last=False)
        task = LearnTask(self.path, before, self.options.encoder, self.options.device, counts, shape)
        self.learning = Learning(self.decoders.context, task, images, job)
        self.call = asyncio.create_task(self._learn(self.learning))
        return job

    async def _learn(self, learning: Learning) -> None:
        job = learning.job
        try:
            async with self.changing:
                await learning.run()
                job.tell(stage="loading")
                await self._reload()
            if learning.silent and self.served is not None and self.served.checksum != learning.task.before:
                job.tell(learned=learned(self.served.model), error=None)  # it was killed after its file was written
            state = "done" if job.learned is not None else "cancelled" if (job.error or {}).get("type") == "cancelled" else "failed"
        except Exception as error:
            log.error("learning", exc_info=error)
            job.tell(error={"type": "internal", "message": "a fault of the server; its log says more"})
            state = "failed"
        finally:
            self.learning = None
        self.outcomes[state] += 1
        job.tell(state=state, stage="")

    async def cancel(self) -> None:
        """End the call that learns, if there is one; the model stays as it was, unless its file is written already."""
        if self.learning is not None and self.call is not None:
            self.learning.cancel()
            await asyncio.wait([self.call])

    async def change(self, change: Callable[[AnyModel], Any]) -> None:
        """Change a copy of the model, write it, and serve it."""

        def changed() -> None:
            copy = served.model.copy()
            change(copy)
            replace_model(self.path, copy, served.checksum, keep_undo=True)

        self._check_not_learning()
        async with self.changing:
            served = self.taught()
            await self._write(changed)

    async def undo(self) -> None:
        self._check_not_learning()
        async with self.changing:
            before = None if self.served is None else self.served.checksum
            await self._write(lambda: undo_change(self.path, before))

    async def _write(self, write: Callable[[], None]) -> None:
        try:
            await self.in_background(write)
        except RunError:  # another program has changed the file: serve what it wrote
            await self._reload()
            raise
        await self._reload()

    async def _reload(self) -> None:
        self.served = await self.in_background(self._load)

    def _load(self) -> Served | None:
        """The model in the file, or the served one if it is the same."""
        checksum = checksum_of(self.path)
        if checksum is None:
            return None
        if self.served is not None and self.served.checksum == checksum:
            return self.served
        served = ready(load_any(self.path), checksum, undo_of(self.path) is not None, self.encoder, self.device)
        if served.model.identity is not None:
            self.encoder = served.model.encoder
        return served

    async def in_background(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.background, work)

    def _check_not_learning(self) -> None:
        if self.learning is not None:
            raise Refused(409, "learning", "the model learns: wait until it has ended, or cancel it")


def _in_background() -> None:
    """Set up a thread with a lower priority than those that answer."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
