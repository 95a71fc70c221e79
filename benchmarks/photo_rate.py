"""How fast photographs are learned: `EncodedModel.learn` against bare loops that decode and encode the same images, in turn.

    python -m benchmarks.photo_rate FOLDER [--images 1000] [--rounds 5] [--threads 2] [--encoder efficientnet-lite0] [--onnxruntime]

FOLDER has a folder of images for each class. All use the same threads. The bare loops: `batches` reads and encodes a batch after the
other, PyTorch sharing each among the threads; `ahead` also reads the next batches meanwhile, in as many threads; `beside` has each thread
read and encode batches of its own, as `learn` does. Which comes first alternates. Prints images a second of each round, for each loop the
median over rounds of its ratio (on the clock, and of processor time, which other load disturbs less), the seconds of a call's closed form
alone (sums, head, calibration), and how many images are only decoded and scaled a second, by one thread, by threads and by processes.
--onnxruntime also learns with the encoder run by ONNX Runtime; its ratio is to `learn`, the other way round: how many times as fast it is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from afaf.encoders.encoder import Encoder, in_order, prepare
from afaf.encoders.find import find_encoder
from afaf.encoders.identity import Preprocessing
from afaf.encoders.runtime import VARIABLE
from afaf.lifelong.encode_files import FileParts
from afaf.lifelong.encoded import EncodedModel, Part
from afaf.lifelong.life import Label
from afaf.streams.own import find_class_folders
from afaf.streams.sources.images import read_image
from benchmarks.provenance import write_results

Files = list[tuple[Path, Label]]
Loop = Callable[[Encoder, Files], None]


def batches_of(encoder: Encoder, files: Files) -> list[list[Path]]:
    return [[path for path, _ in files[start : start + encoder.batch]] for start in range(0, len(files), encoder.batch)]


def read_batch(encoder: Encoder, paths: list[Path]) -> np.ndarray[Any, Any]:
    return np.concatenate([encoder.read(path) for path in paths])


def batches(encoder: Encoder, files: Files) -> None:
    for paths in batches_of(encoder, files):
        encoder.encode(read_batch(encoder, paths))


def ahead(encoder: Encoder, files: Files) -> None:
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for images in in_order(pool, partial(read_batch, encoder), batches_of(encoder, files), 4):
            encoder.encode(images)


def beside(encoder: Encoder, files: Files) -> None:
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(lambda paths: encoder.encode(read_batch(encoder, paths)), batches_of(encoder, files)))
    torch.set_num_threads(threads)


def learn(encoder: Encoder, files: Files) -> None:
    """All images as one call, with the head solved and calibrated."""
    _ready(EncodedModel.begin(encoder).learn(FileParts(encoder, files, "error", "", lambda _: None)))


LOOPS: dict[str, Loop] = {loop.__name__: loop for loop in (batches, ahead, beside, learn)}


def timed(loop: Loop, encoder: Encoder, files: Files) -> tuple[float, float]:
    """Images a second on the clock, and of processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    loop(encoder, files)
    return len(files) / (time.perf_counter() - wall), len(files) / (time.process_time() - cpu)


def closed_form(encoder: Encoder, files: Files) -> float:
    """Seconds of a call whose images are encoded already."""
    parts: list[Part] = list(FileParts(encoder, files, "error", "", lambda _: None))
    started = time.perf_counter()
    _ready(EncodedModel.begin(encoder).learn(parts))
    return time.perf_counter() - started


def _ready(model: EncodedModel) -> tuple[object, ...]:
    return model.linear, model.temperature, model.unknown_above


def read_one(how: Preprocessing, path: Path) -> np.ndarray[Any, Any]:
    return prepare(read_image(path, None)[None], how)


def decoding(how: Preprocessing, files: Files, workers: int, rounds: int) -> dict[str, float]:
    """Images decoded and scaled a second, the median of the rounds. Processes are started before, and each is given 16 images at a time."""
    paths = [path for path, _ in files]
    rates: dict[str, list[float]] = {"one thread": [], "threads": [], "processes": []}
    processes: Executor = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    with ThreadPoolExecutor(workers) as threads, processes:
        list(processes.map(partial(read_one, how), paths[:64]))
        for _ in range(rounds):
            ways: dict[str, Callable[[], Iterable[Any]]] = {
                "one thread": lambda: map(partial(read_one, how), paths),
                "threads": lambda: threads.map(partial(read_one, how), paths),
                "processes": lambda: processes.map(partial(read_one, how), paths, chunksize=16),
            }
            for name, way in ways.items():
                started = time.perf_counter()
                list(way())
                rates[name].append(len(paths) / (time.perf_counter() - started))
    return {name: statistics.median(found) for name, found in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--encoder", default="efficientnet-lite0")
    parser.add_argument("--onnxruntime", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/photo_rate.json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    encoder = find_encoder(options.encoder)
    ways = {name: (loop, encoder) for name, loop in LOOPS.items()}
    if options.onnxruntime:
        os.environ[VARIABLE] = "onnxruntime"
        ways["onnxruntime"] = learn, find_encoder(options.encoder)
    files = find_class_folders(options.folder).files
    chosen: Files = list(files[:: max(1, len(files) // options.images)][: options.images])
    rounds = []
    for number in range(options.rounds):
        order = list(ways) if number % 2 == 0 else list(ways)[::-1]
        rounds.append({name: timed(*ways[name], chosen) for name in order})
    row: dict[str, Any] = {"images": len(chosen), "threads": options.threads, "batch": encoder.batch}
    row["rates"] = {name: [each[name][0] for each in rounds] for name in ways}
    for key, which in (("ratio", 0), ("processor_time_ratio", 1)):
        row[key] = {bare: statistics.median(r["learn"][which] / r[bare][which] for r in rounds) for bare in LOOPS if bare != "learn"}
        if options.onnxruntime:
            row[key]["onnxruntime"] = statistics.median(r["onnxruntime"][which] / r["learn"][which] for r in rounds)
    row["closed_form_seconds"] = closed_form(encoder, chosen)
    row["decoded"] = decoding(encoder.identity.preprocessing, chosen, options.threads, options.rounds)
    print(json.dumps(row))
    write_results(options.out, [row], torch.device("cpu"))


if __name__ == "__main__":
    main()
