"""The HTTP API: one function an endpoint. Its docstring and the line above it are also its description in /openapi.json."""

from __future__ import annotations

import json
import os
import tempfile
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from afaf.files import open_regular
from afaf.serve.errors import Refused
from afaf.serve.jobs import LearnJob
from afaf.serve.limits import Bodies
from afaf.serve.service import Service
from afaf.text import printable_name

CHUNK = 1 << 16
NAME_BYTES = 1 << 16  # of a request with a name


@dataclass(frozen=True)
class Api:
    service: Service
    bodies: Bodies
    metrics: Callable[[], bytes]


Handler = Callable[[Api, Request], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    method: str
    path: str
    handler: Handler
    changes: bool = False  # refused by a server that is read-only
    status: int = 200
    body: Literal["images", "name"] | None = None
    query: Sequence[str] = ()
    answer: str = "application/json"  # its media type


ENDPOINTS: list[Endpoint] = []


def endpoint(method: str, path: str, **about: Any) -> Callable[[Handler], Handler]:
    """Register a function as an `Endpoint`; `about` are its other fields."""

    def register(handler: Handler) -> Handler:
        ENDPOINTS.append(Endpoint(method, path, handler, **about))
        return handler

    return register


@endpoint("GET", "/health")
async def health(api: Api, request: Request) -> Response:
    """Whether the server runs. Needs no token."""
    return JSONResponse({"status": "ok"})


@endpoint("POST", "/predict", body="images", query=("top", "unknown_below"))
async def predict(api: Api, request: Request) -> Response:
    """The likeliest classes of one or many images, with probabilities.

    `unknown` is true where an image is like no class, and null where the model cannot tell. `nearest` are the classes that the image is
    nearest to, with an encoder; an image farther than `unknown_above` from all of them is called none of these."""
    top, below = _number(request, "top", 3, 1, 1000), _number(request, "unknown_below", 0.0, 0.0, 1.0)
    api.service.taught()
    with api.bodies.of(request) as body:
        answers = await api.service.predict(await body.images(), int(top), below)
    return JSONResponse({"answers": answers})


@endpoint("GET", "/classes")
async def classes(api: Api, request: Request) -> Response:
    """The classes and calls of the model, classes that it confuses, images that wait to be learned, and whether a change can be undone."""
    return JSONResponse(api.service.about())


@endpoint("POST", "/classes/{name}/images", changes=True, status=202, body="images")
async def add_images(api: Api, request: Request) -> Response:
    """Images of a class, new or known, for the next call of /learn. They wait in memory and are never written to a disk."""
    name = class_name(api, request.path_params["name"])
    with api.bodies.of(request) as body:
        count = await api.service.add(name, await body.images())
    return JSONResponse({"name": name, "waiting": count}, 202)


@endpoint("DELETE", "/classes/{name}/images", changes=True, status=204, answer="")
async def drop_images(api: Api, request: Request) -> Response:
    """Drop the images of a class that wait to be learned."""
    api.service.waiting.drop(_decoded(request.path_params["name"]))
    return Response(status_code=204)


@endpoint("POST", "/learn", changes=True, status=202)
async def learn(api: Api, request: Request) -> Response:
    """Learn everything that waits, as one call. Answers go on from the model as it is until the new one takes its place."""
    job = await api.service.learn()
    return JSONResponse(job.to_dict(), 202, headers={"location": f"/jobs/{job.id}"})


@endpoint("DELETE", "/learn", changes=True, status=204, answer="")
async def cancel(api: Api, request: Request) -> Response:
    """Cancel the call that learns. Its images are gone; the model stays as it was."""
    await api.service.cancel()
    return Response(status_code=204)


@endpoint("GET", "/jobs/{id}")
async def job_state(api: Api, request: Request) -> Response:
    """The progress and the result of a call of /learn."""
    return JSONResponse(_job(api, request).to_dict())


@endpoint("GET", "/jobs/{id}/events", answer="text/event-stream")
async def job_events(api: Api, request: Request) -> Response:
    """The same as server-sent events: one now, and one whenever it changes, until the call has ended."""
    job = _job(api, request)

    async def lines() -> AsyncIterator[str]:
        async for state in job.updates():
            yield ": still there\n\n" if state is None else f"data: {json.dumps(state)}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


@endpoint("PATCH", "/classes/{name}", changes=True, body="name")
async def rename(api: Api, request: Request) -> Response:
    """Another name for a class."""
    old = _known(api, request)
    try:
        with api.bodies.of(request) as body:
            new = json.loads(await body.read(NAME_BYTES))["name"]
        if not isinstance(new, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused(422, "invalid", 'send {"name": NEW}') from None
    new = checked_name(api, new)
    await api.service.change(lambda model: model.rename(model.life.label_of(old), new))
    return JSONResponse({"name": new})


@endpoint("DELETE", "/classes/{name}", changes=True, status=204, answer="")
async def remove(api: Api, request: Request) -> Response:
    """Remove a class: it is no longer predicted. With an encoder, its images stay in the sums until the call is undone."""
    name = _known(api, request)
    await api.service.change(lambda model: model.remove(model.life.label_of(name)))
    return Response(status_code=204)


@endpoint("POST", "/undo", changes=True)
async def undo(api: Api, request: Request) -> Response:
    """Undo the last change: a call of /learn, a rename or a removal. One step is kept, also when the server restarts."""
    await api.service.undo()
    return JSONResponse(api.service.about())


@endpoint("GET", "/model", answer="application/octet-stream")
async def model(api: Api, request: Request) -> Response:
    """The model file."""
    api.service.taught()
    file = await anyio.to_thread.run_sync(open_regular, api.service.path)  # an open file does not change if it is replaced meanwhile
    size = os.fstat(file.fileno()).st_size

    async def parts() -> AsyncIterator[bytes]:
        with file:
            while part := await anyio.to_thread.run_sync(file.read, CHUNK):
                yield part

    headers = {"content-length": str(size), "content-disposition": 'attachment; filename="model.safetensors"'}
    return StreamingResponse(parts(), media_type="application/octet-stream", headers=headers)


@endpoint("GET", "/model.onnx", answer="application/octet-stream")
async def onnx(api: Api, request: Request) -> Response:
    """The model as ONNX, with its encoder if it has one, verified against the model."""
    served = api.service.taught()
    from afaf.lifelong.export import export

    network = served.model

    def exported() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            export(network, path, "onnx")
            return path.read_bytes()

    headers = {"content-disposition": 'attachment; filename="model.onnx"'}
    return Response(await api.service.in_background(exported), media_type="application/octet-stream", headers=headers)


@endpoint("GET", "/metrics", answer="text/plain")
async def metrics(api: Api, request: Request) -> Response:
    """Requests, answers and calls of /learn, for Prometheus."""
    return Response(api.metrics(), media_type="text/plain; version=0.0.4")


def class_name(api: Api, segment: str) -> str:
    """The name of a class, new or known, from a URL."""
    name = _decoded(segment)
    served = api.service.served
    return name if served is not None and name in served.labels else checked_name(api, name)


def checked_name(api: Api, name: str) -> str:
    """A name is text on one line, without control characters, in Unicode's composed form."""
    name = unicodedata.normalize("NFC", name).strip()
    longest = api.service.limits.name_length
    if not name or name in (".", "..") or len(name) > longest or printable_name(name) != name:
        raise Refused(422, "name", f"the name of a class is 1 to {longest} printable characters on one line")
    return name


def _decoded(segment: str) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise Refused(422, "name", "a name in an address is percent-encoded UTF-8") from None


def _known(api: Api, request: Request) -> str:
    name = _decoded(request.path_params["name"])
    if name not in api.service.taught().labels:
        raise Refused(404, "no_such_class", "the model knows no class of that name")
    return name


def _job(api: Api, request: Request) -> LearnJob:
    try:
        return api.service.jobs[request.path_params["id"]]
    except KeyError:
        raise Refused(404, "no_such_job", "there is no such call of /learn, or it was long ago") from None


def _number(request: Request, name: str, default: float, least: float, most: float) -> float:
    try:
        value = float(request.query_params.get(name, default))
        if least <= value <= most:
            return value
    except ValueError:
        pass
    raise Refused(422, "invalid", f"{name} is a number from {least:g} to {most:g}")
