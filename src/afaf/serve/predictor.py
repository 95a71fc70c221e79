"""Answer the waiting images of all requests in batches, on one thread per core with one PyTorch thread each.

Several PyTorch threads on one batch would wait for each other, which takes long when another process needs a core.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from afaf.serve.limits import busy
from afaf.serve.models import Answers, Served
from afaf.streams.sources.source import Pixels

BATCH = 8
Place = tuple[Answers, int]  # an image's row in its batch's answers


class Predictor:
    def __init__(self, workers: int, limit: int):
        self.pool = ThreadPoolExecutor(workers, "predict", torch.set_num_threads, (1,))
        self.idle, self.limit = workers, limit
        self.waiting: deque[tuple[Served, Pixels, asyncio.Future[Place]]] = deque()
        self.tasks: set[asyncio.Task[None]] = set()
        self.batches = self.images = 0

    async def ask(self, served: Served, images: list[Pixels]) -> list[Place]:
        """The answers of one model, in order."""
        if len(self.waiting) + len(images) > self.limit and self.waiting:
            raise busy("too many images wait for an answer")
        futures: list[asyncio.Future[Place]] = [asyncio.get_running_loop().create_future() for _ in images]
        self.waiting.extend((served, pixels, future) for pixels, future in zip(images, futures, strict=True))
        self._dispatch()
        return await asyncio.gather(*futures)

    def _dispatch(self) -> None:
        while self.waiting and self.idle:
            self.idle -= 1
            share = min(BATCH, -(-len(self.waiting) // (self.idle + 1)))
            served = self.waiting[0][0]
            batch: list[tuple[Pixels, asyncio.Future[Place]]] = []
            while self.waiting and len(batch) < share and self.waiting[0][0] is served:
                batch.append(self.waiting.popleft()[1:])
            task = asyncio.create_task(self._answer(served, batch))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _answer(self, served: Served, batch: list[tuple[Pixels, asyncio.Future[Place]]]) -> None:
        self.batches, self.images = self.batches + 1, self.images + len(batch)
        try:
            pixels = np.stack([pixels for pixels, _ in batch])
            answers = await asyncio.get_running_loop().run_in_executor(self.pool, served.answers, pixels)
            for row, (_, future) in enumerate(batch):
                if not future.done():
                    future.set_result((answers, row))
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        finally:
            self.idle += 1
            self._dispatch()

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
