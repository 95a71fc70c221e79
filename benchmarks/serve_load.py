"""How `afaf serve` holds up under load: `python -m benchmarks.serve_load`; two cores, nothing else running.

Prints two ratios, each measured in one run. Throughput: single-image requests of 32 clients that ask without a pause, against the bare
encoder on images that are already decoded, with as many threads as the server has; also by processor time, of the server and its clients,
which other work on the machine does not change. Latency: the 99th percentile at 30 % of that throughput
while a task is learned, against the same without learning; a request counts from the moment when it was due. The goals are 0.8 and 5.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from afaf.encoders.encoder import Encoder
from afaf.encoders.find import find_encoder

CLIENTS, SHARE, ROUNDS = 32, 0.3, 10
GOAL_THROUGHPUT, GOAL_P99 = 0.8, 5.0
SIDE = 256  # of the photos that are sent
IDLE = 3.0  # seconds after which a client connects anew, for servers close what is not used


def photos(count: int, seed: int, colour: int) -> list[bytes]:
    """JPEG files of smooth noise around a colour."""
    draws, found = np.random.default_rng(seed), []
    for _ in range(count):
        pixels = draws.normal(0, 40, (16, 16, 3)) + np.eye(3)[colour % 3] * 90 + 90
        buffer = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).resize((SIDE, SIDE)).save(buffer, "jpeg", quality=90)
        found.append(buffer.getvalue())
    return found


@contextmanager
def server(path: Path) -> Iterator[tuple[tuple[str, int], int]]:
    """Its address and its process."""
    code = "from afaf.cli.main import main; main()"
    command = [sys.executable, "-c", code, "serve", str(path), "--port", "0", "--rate", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://([\d.]+):(\d+)/", process.stdout.readline())
        assert found is not None
        yield (found[1], int(found[2])), process.pid
    finally:
        process.terminate()
        process.wait()


def processor_seconds(pid: int) -> float:
    """Of a process and all below it, so far; Linux only, elsewhere 0."""
    rows = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        rows[int(entry.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {pid}
    while more := {child for child, (parent, _) in rows.items() if parent in family} - family:
        family |= more
    return sum(rows[each][1] for each in family if each in rows) / os.sysconf("SC_CLK_TCK")


def form(images: list[bytes]) -> tuple[bytes, str]:
    head = b'--edge\r\nContent-Disposition: form-data; name="images"; filename="x"\r\n\r\n'
    return b"".join(head + image + b"\r\n" for image in images) + b"--edge--\r\n", "multipart/form-data; boundary=edge"


def ask(where: tuple[str, int], method: str, path: str, images: list[bytes] | None = None) -> Any:
    body, kind = form(images) if images else (None, "text/plain")
    request = urllib.request.Request(f"http://{where[0]}:{where[1]}{path}", body, {"content-type": kind}, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def stage(where: tuple[str, int], name: str, images: list[bytes]) -> None:
    for start in range(0, len(images), 50):
        ask(where, "POST", f"/classes/{name}/images", images[start : start + 50])


def learn(where: tuple[str, int]) -> None:
    job = ask(where, "POST", "/learn")
    while job["state"] == "learning":
        time.sleep(0.1)
        job = ask(where, "GET", f"/jobs/{job['id']}")
    assert job["state"] == "done", job


def bare(encoder: Encoder, seconds: float, threads: int) -> float:
    """Images a second of the encoder alone."""
    pixels = np.random.default_rng(0).integers(0, 255, (8, 224, 224, 3), dtype=np.uint8)
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(encoder.encode, [pixels] * threads))
        end, started = time.monotonic() + seconds, time.monotonic()

        def work(_: int) -> int:
            count = 0
            while time.monotonic() < end:
                encoder.encode(pixels)
                count += len(pixels)
            return count

        return sum(pool.map(work, range(threads))) / (time.monotonic() - started)


class Client:
    """One connection; requests are written as bytes that are ready, so that the client takes little of the processor."""

    def __init__(self, where: tuple[str, int], images: list[bytes]):
        self.where = where
        head = "POST /predict HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: image/jpeg\r\nContent-Length: {}\r\n\r\n"
        self.requests = [head.format(*where, len(image)).encode() + image for image in images]

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(*self.where)
        self.used = time.monotonic()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def ask(self, number: int) -> None:
        if time.monotonic() - self.used > IDLE:
            self.writer.close()
            await self.__aenter__()
        self.used = time.monotonic()
        self.writer.write(self.requests[number % len(self.requests)])
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        body = await self.reader.readexactly(int(length[1]))
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(body.decode())


async def saturate(where: tuple[str, int], images: list[bytes], seconds: float) -> float:
    """Answers a second when all clients ask without a pause."""
    end, count = time.monotonic() + seconds, 0

    async def one(number: int) -> None:
        nonlocal count
        async with Client(where, images) as client:
            while time.monotonic() < end:
                await client.ask(number)
                number, count = number + 1, count + (time.monotonic() < end)

    await asyncio.gather(*(one(number) for number in range(CLIENTS)))
    return count / seconds


async def at_rate(where: tuple[str, int], images: list[bytes], rate: float, end: asyncio.Event, seconds: float) -> list[float]:
    """Latencies of clients that ask at random moments, so many times a second together, until the end."""
    latencies: list[float] = []
    last = time.monotonic() + seconds

    async def one(number: int) -> None:
        draw = random.Random(number)
        due = time.monotonic() + draw.expovariate(rate / CLIENTS)
        async with Client(where, images) as client:
            while not end.is_set() and due < last:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await client.ask(number)
                latencies.append(time.monotonic() - due)
                number, due = number + 1, due + draw.expovariate(rate / CLIENTS)

    await asyncio.gather(*(one(number) for number in range(CLIENTS)))
    return latencies


async def while_learning(where: tuple[str, int], images: list[bytes], rate: float) -> tuple[list[float], float]:
    end, started = asyncio.Event(), time.monotonic()

    async def teach() -> float:
        await asyncio.to_thread(learn, where)
        end.set()
        return time.monotonic() - started

    latencies, seconds = await asyncio.gather(at_rate(where, images, rate, end, 600), teach())
    return latencies, seconds


def p99(latencies: list[float]) -> float:
    return float(np.quantile(latencies, 0.99))


def measure(seconds: float, learned: int) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    images = photos(64, 5, 0)
    with tempfile.TemporaryDirectory() as folder, server(Path(folder) / "model.safetensors") as (where, pid):
        for colour, name in enumerate(("a", "b", "c")):
            stage(where, name, photos(60, colour, colour))
        learn(where)
        asyncio.run(saturate(where, images, 2))
        encoder, rounds = find_encoder("efficientnet-lite0"), []
        efforts = []  # images in a second of processor time, which other work does not change
        for _ in range(ROUNDS):  # in turn, so that whatever else the machine does falls on both
            part, own, theirs = seconds / ROUNDS, time.process_time(), processor_seconds(pid)
            alone = bare(encoder, part, cores)
            own, middle = time.process_time() - own, time.process_time()
            served = asyncio.run(saturate(where, images, part))
            theirs = processor_seconds(pid) - theirs + time.process_time() - middle
            rounds.append((alone, served))
            efforts.append(part * served / theirs / (part * alone / own))
        alone, served = (float(np.median(values)) for values in zip(*rounds, strict=True))
        rate = SHARE * served
        quiet = asyncio.run(at_rate(where, images, rate, asyncio.Event(), seconds))
        stage(where, "d", photos(learned, 9, 1))
        busy, took = asyncio.run(while_learning(where, images, rate))
    return {
        "cores": cores,
        "bare_images_per_second": alone,
        "served_images_per_second": served,
        "throughput_ratio": float(np.median([b / a for a, b in rounds])),
        "ratio_by_processor_time": float(np.median(efforts)),
        "rate": rate,
        "quiet": {"requests": len(quiet), "p50_ms": 1e3 * float(np.median(quiet)), "p99_ms": 1e3 * p99(quiet)},
        "learning": {"requests": len(busy), "p50_ms": 1e3 * float(np.median(busy)), "p99_ms": 1e3 * p99(busy), "seconds": took},
        "p99_ratio": p99(busy) / p99(quiet),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--learned", type=int, default=600, help="images of the task that is learned meanwhile")
    arguments = parser.parse_args()
    found = measure(arguments.seconds, arguments.learned)
    print(json.dumps(found, indent=2))
    print(f"throughput {found['throughput_ratio']:.2f} of the bare encoder (goal: at least {GOAL_THROUGHPUT})")
    print(f"by processor time {found['ratio_by_processor_time']:.2f}")
    print(f"p99 while learning {found['p99_ratio']:.2f} times the quiet one (goal: at most {GOAL_P99:g})")


if __name__ == "__main__":
    main()
