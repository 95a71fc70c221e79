"""A real server on a free port of this machine, in a thread, for tests that talk to it over HTTP."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from PIL import Image

from afaf.encoders.find import automatic
from afaf.serve.limits import RequestLimits
from afaf.serve.server import bound, uvicorn_config
from afaf.serve.service import ServeOptions

COLOURS = {"red": (200, 60, 60), "green": (60, 200, 60), "blue": (60, 60, 200)}


def photo(colour: str, seed: int, side: int = 24) -> bytes:
    """A PNG file of noise around a colour."""
    pixels = np.array(COLOURS[colour]) + np.random.default_rng(seed).normal(0, 40, (side, side, 3))
    return png(pixels.clip(0, 255).astype(np.uint8))


def png(pixels: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def files(images: list[bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (f"{number}.png", data)) for number, data in enumerate(images)]


def add(client: httpx.Client, name: str, images: list[bytes]) -> httpx.Response:
    return client.post(f"/classes/{name}/images", files=files(images))


def wait(client: httpx.Client, answer: httpx.Response, seconds: float = 120) -> dict[str, Any]:
    """The job that a call of learn began, when it has ended."""
    assert answer.status_code == 202, answer.text
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        job: dict[str, Any] = client.get(answer.headers["location"]).json()
        if job["state"] != "learning":
            return job
        time.sleep(0.05)
    raise AssertionError("it still learns")


def teach(client: httpx.Client, *colours: str, count: int = 6, seed: int = 0) -> dict[str, Any]:
    for colour in colours:
        assert add(client, colour, [photo(colour, seed + i) for i in range(count)]).status_code == 202
    job = wait(client, client.post("/learn"))
    assert job["state"] == "done", job
    return job


def names(client: httpx.Client) -> list[str]:
    return [row["name"] for row in client.get("/classes").json()["classes"]]


@contextlib.contextmanager
def running(path: Path, **options: Any) -> Iterator[httpx.Client]:
    limits = RequestLimits(**{"rate": 0, **options.pop("limits", {})})
    options.setdefault("encoder", automatic())
    token = options.get("token")
    with bound("127.0.0.1", 0, token) as listening:
        server = uvicorn.Server(uvicorn_config(path, ServeOptions(limits=limits, **options)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", headers=headers, timeout=60) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(30)
