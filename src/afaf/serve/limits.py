"""Bounds on what clients may ask for: bytes, images, connections, time, and requests in a second."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from afaf.serve.errors import Refused

HEAD_BYTES = 1 << 16  # of a request line and its headers
HEAD_SECONDS = 10.0  # for them to arrive
STALL_SECONDS = 20.0  # between two pieces of a body, or of an answer
CONNECTIONS = 256
PIPELINED = 4  # requests that a connection may send ahead of the answers: browsers send none, and uvicorn has no limit
CLIENTS = 10_000  # whose rate is tracked


@dataclass(frozen=True)
class RequestLimits:
    image_bytes: int = 32 << 20
    request_bytes: int = 64 << 20
    request_images: int = 64
    request_seconds: float = 120.0  # for a body to arrive
    bodies_bytes: int = 512 << 20  # of all requests together
    decode_seconds: float = 10.0  # of processor time, for one image
    queued_images: int = 512  # that wait for an answer
    waiting_bytes: int = 512 << 20  # of prepared images that wait to be learned
    waiting_seconds: float = 1800.0  # after which they are dropped if nothing is added
    classes: int = 1000
    name_length: int = 100
    rate: float = 50.0  # requests of a client in a second; 0: any number
    burst: float = 200.0


class RateLimit:
    """A token bucket for each client address."""

    def __init__(self, rate: float, burst: float):
        self.rate, self.burst = rate, burst
        self.buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted

    def take(self, client: str, cost: float = 1.0) -> None:
        if not self.rate:
            return
        now = time.monotonic()
        tokens, then = self.buckets.pop(client, (self.burst, now))
        tokens = min(self.burst, tokens + (now - then) * self.rate)
        allowed = tokens >= 1
        self.buckets[client] = (max(tokens - cost, -self.burst) if allowed else tokens, now)
        if len(self.buckets) > CLIENTS:
            self.buckets.popitem(last=False)
        if not allowed:
            seconds = str(int((1 - tokens) / self.rate) + 1)
            raise Refused(429, "rate", "too many requests from this address: wait a moment", {"retry-after": seconds})


class Bodies:
    """The bodies of all requests, read into memory within one common limit."""

    def __init__(self, limits: RequestLimits):
        self.limits, self.bytes = limits, 0

    @contextmanager
    def of(self, request: Request) -> Iterator[Body]:
        """The body of a request; it counts as memory in use until the end of the block."""
        body = Body(self, request)
        try:
            yield body
        finally:
            self.bytes -= body.bytes


class Body:
    """The body of one request, read within the limits."""

    def __init__(self, bodies: Bodies, request: Request):
        self.bodies, self.request, self.limits, self.bytes = bodies, request, bodies.limits, 0

    async def read(self, limit: int) -> bytes:
        return b"".join([chunk async for chunk in self._chunks(limit)])

    async def images(self) -> list[bytes]:
        """The images of a request: the files of a form, or the body itself."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            images = await self._form()
        elif kind.startswith("image/") or kind == "application/octet-stream":
            images = [await self.read(self.limits.image_bytes)]
        else:
            raise Refused(415, "content_type", "send an image (image/*) or a form with files (multipart/form-data)")
        if not images or not all(images):
            raise Refused(422, "data", "there is no image in the request, or an empty one")
        if max(map(len, images)) > self.limits.image_bytes:
            raise too_large(self.limits.image_bytes)
        return images

    async def _form(self) -> list[bytes]:
        chunks, most = self._chunks(self.limits.request_bytes), self.limits.request_images
        parser = _InMemory(self.request.headers, chunks, max_files=most, max_fields=8, max_part_size=1 << 12)
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise Refused(400, "form", f"not a form that can be read: {error.message}") from None
        if not parser.ended:
            raise Refused(400, "truncated", "the form ends before its last boundary")
        return [await file.read() for _, file in form.multi_items() if not isinstance(file, str)]

    async def _chunks(self, limit: int) -> AsyncGenerator[bytes, None]:
        if int(self.request.headers.get("content-length") or 0) > limit:
            raise too_large(limit)
        try:
            async with asyncio.timeout(self.limits.request_seconds):
                stream = self.request.stream()
                while True:
                    async with asyncio.timeout(STALL_SECONDS):
                        chunk = await anext(stream, None)
                    if chunk is None:
                        return
                    self.bytes, self.bodies.bytes = self.bytes + len(chunk), self.bodies.bytes + len(chunk)
                    if self.bytes > limit:
                        raise too_large(limit)
                    if self.bodies.bytes > self.limits.bodies_bytes:
                        raise busy("too many uploads at once")
                    yield chunk
        except TimeoutError:
            raise Refused(408, "slow", "the request took too long to arrive", {"connection": "close"}) from None
        except ClientDisconnect:
            raise Refused(400, "truncated", "the request ended before its body did") from None


class _InMemory(MultiPartParser):
    """Files of a form stay in memory: no image is written to a disk."""

    spool_max_size = 1 << 40
    ended = False

    def on_end(self) -> None:
        self.ended = True


def too_large(limit: int) -> Refused:
    return Refused(413, "too_large", f"more than {limit:,} bytes: send smaller images, or fewer at once")


def busy(why: str) -> Refused:
    return Refused(503, "busy", f"{why}: try again in a moment", {"retry-after": "1"})


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with bounds on connections, on headers, and on clients that neither write nor read."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.head = 0
        self.stalled: asyncio.TimerHandle | None = None
        self.deadline = self.loop.call_later(HEAD_SECONDS, self._give_up)
        if len(self.connections) > CONNECTIONS:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline.cancel()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.head = 0
            self.deadline.cancel()
            return
        self.head += len(data)
        if self.head > HEAD_BYTES:
            self.transport.abort()
        elif self.deadline.cancelled():
            self.deadline = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if len(self.pipeline) > PIPELINED:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self.stalled is not None:
            self.stalled.cancel()
            self.stalled = None
        if self.flow is not None:
            super().resume_writing()

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
