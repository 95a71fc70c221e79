"""How fast a model answers: the whole network beside the one without its unused neurons, in PyTorch and in ONNX Runtime, in one run.

    python -m benchmarks.inference --data DATA [--model FILE] [--threads 1] [--out benchmarks/results/inference.json]

Without --model, one is made: CIFAR-10 in five calls of two classes with the default network, few images and one epoch; how fast it answers
depends on the sub-networks, not on how well they were learned. Every export is compared with the model on 1,000 real test images.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from afaf.lifelong.export import Answer, Kind, difference_from, export, open_onnx, open_torch
from afaf.lifelong.model import Lifelong
from afaf.lifelong.settings import LifelongSettings
from afaf.streams.benchmarks import open_stream
from afaf.streams.sources import data_folder
from benchmarks.provenance import write_results

REAL = 1000  # test images
BATCHES = (1, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the datasets; by default AFAF_DATA")
    parser.add_argument("--model", type=Path, help="a model of 32x32 colour images")
    parser.add_argument("--images", type=int, default=64, help="of each class that the model is made from")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/inference.json"))
    options = parser.parse_args()
    stream = open_stream("split-cifar10", data=data_folder(options.data))
    tests = np.concatenate([task.test.images[:: len(task.test) * len(stream) // REAL] for task in stream])[:REAL]
    model = Lifelong.load(options.model) if options.model else made(stream, options.images)
    torch.set_num_threads(options.threads)
    rows = measure(model, tests, options.threads, options.repeat)
    show(rows)
    write_results(options.out, rows, torch.device("cpu"))


def made(stream: Any, images: int) -> Lifelong:
    """A model that has learned five tasks, a little."""
    model: Lifelong | None = None
    for task in stream.with_at_most(images):
        settings = LifelongSettings(max_tasks=len(stream), epochs=1)
        model = model or Lifelong.begin(task.train.images, task.train.labels.tolist(), settings, torch.device("cpu"))
        model = model.learn(task.train.images, task.train.labels.tolist())
    assert model is not None
    return model


def measure(model: Lifelong, tests: NDArray[Any], threads: int, repeat: int) -> list[dict[str, Any]]:
    """Both networks in both runtimes, one after the other in each round, so that what else the machine does meets all alike."""
    answers: dict[tuple[str, str], Answer] = {}
    rows: list[dict[str, Any]] = []
    logits = model.logits(tests)
    with tempfile.TemporaryDirectory() as folder:
        kinds: list[tuple[Kind, Callable[[Path], Answer]]] = [("torch", open_torch), ("onnx", lambda path: open_onnx(path, threads))]
        for kind, opened in kinds:
            for which in ("dense", "compacted"):
                path = Path(folder) / f"{which}.{kind}"
                found = export(model, path, kind, dense=which == "dense")
                answers[kind, which] = opened(path)
                difference = difference_from(logits, model.temperature, answers[kind, which], tests)
                about = {"runtime": kind, "network": which, "weights": found.weights, "bytes": found.bytes, "threads": threads}
                rows.append({**about, "difference": difference, "images": len(tests)})
    seconds: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(repeat):
        for (runtime, which), answer in answers.items():
            for batch in BATCHES:
                n = 16 if batch == 1 else 128
                started = time.perf_counter()
                for first in range(0, n, batch):
                    answer(tests[first : first + batch])
                seconds.setdefault((runtime, which, batch), []).append((time.perf_counter() - started) / n)
    for row in rows:
        for batch in BATCHES:
            row[f"images_per_second_batch_{batch}"] = round(1 / float(np.median(seconds[row["runtime"], row["network"], batch])), 1)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("runtime", "network", "weights", "MB", "images/s, one by one", "images/s, batches of 64", "largest difference")
    for row in rows:
        speeds = [f"{row[f'images_per_second_batch_{batch}']:,.0f}" for batch in BATCHES]
        size = f"{row['bytes'] / 1e6:.1f}"
        table.add_row(row["runtime"], row["network"], f"{row['weights']:,}", size, *speeds, f"{row['difference']:.1e}")
    Console().print(table)


if __name__ == "__main__":
    main()
