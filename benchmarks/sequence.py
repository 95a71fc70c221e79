"""Whole sequences on every engine: seconds from loaded data to the final R matrix, side by side.

    python -m benchmarks.sequence split-cifar10 afaf --engines graphed compact eager --epochs 40 --seeds 1

Prints a table and writes JSON with device and commit. Ratios are taken within one run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from afaf.runs.device import device_name, find_device
from afaf.runs.runner import Listener, run
from afaf.streams.benchmarks import open_stream
from afaf.streams.tasks import Outline
from benchmarks.provenance import write_results


class Clock(Listener):
    """Seconds of each lesson, learning and judging together."""

    def __init__(self) -> None:
        self.started = 0.0
        self.lessons: list[float] = []

    def run_started(self, outline: Outline, method: str, seed: int, epochs: int) -> None:
        self.started = time.perf_counter()

    def lesson_ended(self, tasks: tuple[int, ...], row: list[float | None], row_task_il: list[float | None]) -> None:
        now = time.perf_counter()
        self.lessons.append(now - self.started - sum(self.lessons))


def measure(stream: Any, method: str, engine: str, precision: str, epochs: int, seed: int, device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    clock = Clock()
    settings = {"learn.epochs": epochs, "run.engine": engine, "run.precision": precision}
    results = run(stream, method, seed=seed, device=str(device), settings=settings, listener=clock)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {
        "stream": stream.name,
        "method": method,
        "engine": engine,
        "precision": precision if device.type == "cuda" else "fp32",
        "epochs": epochs,
        "seed": seed,
        "seconds": results.seconds,
        "seconds_learning": results.seconds_learning,
        "lessons": clock.lessons,
        "acc": results.acc,
        "bwt": results.bwt,
        "acc_task_il": results.acc_task_il,
        "peak_gpu_bytes": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("method")
    parser.add_argument("--engines", nargs="+", default=["graphed", "compact", "eager"])
    parser.add_argument("--precision", nargs="+", default=["tf32"])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sequence.json"))
    options = parser.parse_args()
    device = find_device(options.device)
    stream = open_stream(options.stream, data=options.data)
    rows = []
    for engine in options.engines:
        for precision in options.precision:
            for seed in range(options.seeds):
                row = measure(stream, options.method, engine, precision, options.epochs, seed, device)
                rows.append(row)
                print(row, flush=True)
    table = Table(title=f"{options.stream}, {options.method}, {options.epochs} epochs, {device_name(device)}")
    for column in ("engine", "precision", "seed", "seconds", "per lesson", "ACC", "BWT", "task-IL", "peak GB"):
        table.add_column(column)
    for row in rows:
        lessons = " ".join(f"{seconds:.1f}" for seconds in row["lessons"])
        peak = "-" if row["peak_gpu_bytes"] is None else f"{row['peak_gpu_bytes'] / 1e9:.2f}"
        accuracies = [f"{row[name]:.2f}" if row[name] is not None else "-" for name in ("acc", "bwt", "acc_task_il")]
        table.add_row(row["engine"], row["precision"], str(row["seed"]), f"{row['seconds']:.1f}", lessons, *accuracies, peak)
    Console().print(table)
    write_results(options.out, rows, device)


if __name__ == "__main__":
    main()
