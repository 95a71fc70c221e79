"""The ASGI application: endpoints, the page, metrics, and the guard around them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from afaf.serve.api import ENDPOINTS, Api, Endpoint
from afaf.serve.errors import Refused, refusal, response
from afaf.serve.limits import Bodies, RateLimit
from afaf.serve.openapi import openapi
from afaf.serve.security import Guard
from afaf.serve.service import Service

PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
log = logging.getLogger("uvicorn.error")


class Metrics:
    """Counts for Prometheus; those of the service are read on request."""

    def __init__(self, service: Service):
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("afaf_requests", "Requests by endpoint and status.", ("endpoint", "status"), registry=registry)
        self.seconds = Histogram("afaf_request_seconds", "Time of a request.", ("endpoint",), registry=registry)
        numbers: dict[str, tuple[str, Callable[[], float]]] = {
            "afaf_classes": ("Classes that the model knows.", lambda: len(service.served.labels) if service.served else 0),
            "afaf_images_answered": ("Images that were answered.", lambda: service.predictor.images),
            "afaf_batches": ("Batches in which they were answered.", lambda: service.predictor.batches),
            "afaf_images_queued": ("Images that wait for an answer.", lambda: len(service.predictor.waiting)),
            "afaf_images_waiting": ("Images that wait to be learned.", lambda: sum(service.waiting.counts().values())),
            "afaf_learning": ("1 while a call is learned.", lambda: service.learning is not None),
        }
        for name, (words, number) in numbers.items():
            Gauge(name, words, registry=registry).set_function(number)
        calls = Gauge("afaf_calls", "Calls of learn by their outcome.", ("outcome",), registry=registry)
        for outcome in service.outcomes:
            calls.labels(outcome).set_function(partial(service.outcomes.__getitem__, outcome))

    def text(self) -> bytes:
        return generate_latest(self.registry)


def build_app(service: Service) -> ASGIApp:
    metrics = Metrics(service)
    api = Api(service, Bodies(service.limits), metrics.text)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    routes = [Route(each.path, _handled(api, metrics, each), methods=[each.method]) for each in ENDPOINTS]
    description, pages = JSONResponse(openapi()), {f"/page/{path.name}": path for path in PAGE.iterdir()}
    for path, file in {"/": PAGE / "index.html", "/docs": PAGE / "docs.html", **pages}.items():
        routes.append(Route(path, _constant(Response(file.read_bytes(), media_type=TYPES[file.suffix]))))
    routes.append(Route("/openapi.json", _constant(description)))
    handlers: dict[Any, Any] = {404: _refused, 405: _refused, Exception: _refused}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False
    limits = service.limits
    return Guard(app, service.options.token, service.options.hosts, RateLimit(limits.rate, limits.burst))


def _handled(api: Api, metrics: Metrics, each: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint, counted, with errors as answers."""

    async def handle(request: Request) -> Response:
        began = time.perf_counter()
        try:
            if each.changes and api.service.options.read_only:
                raise Refused(403, "read_only", "this server is read-only")
            answer = await each.handler(api, request)
        except Exception as error:
            refused = refusal(error)
            if refused.status == 500:
                log.error("%s %s", each.method, each.path, exc_info=error)
            answer = response(refused)
        label = f"{each.method} {each.path}"
        metrics.requests.labels(label, str(answer.status_code)).inc()
        metrics.seconds.labels(label).observe(time.perf_counter() - began)
        return answer

    return handle


def _constant(answer: Response) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        return answer

    return handle


async def _refused(request: Request, error: Exception) -> Response:
    return response(refusal(error))
