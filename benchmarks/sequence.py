"""Whole sequences on every engine: seconds from loaded data to the final R matrix, side by side.

    python -m benchmarks.sequence split-cifar10 afaf --engines graphed compact eager --epochs 40 --seeds 1
    python -m benchmarks.sequence split-cifar10 afaf --engines graphed --seeds 8 --side-by-side

With --side-by-side the seeds run at the same time on one device, and `seconds` is what all took, divided by their number. Prints a table
and writes JSON with device and commit. Ratios are taken within one run.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from afaf.runs.device import device_name, find_device
from afaf.runs.events import Event, JobFinished, RunStarted, TaskEnded, raise_failure
from afaf.runs.job import Job
from afaf.runs.results import Results
from afaf.runs.runner import run
from afaf.streams.benchmarks import open_stream
from afaf.sweeps.executor import LocalExecutor
from benchmarks.provenance import write_results


class Clock:
    """Seconds of each task, learning and evaluation together."""

    def __init__(self) -> None:
        self.started = 0.0
        self.task_seconds: list[float] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.started = time.perf_counter()
        elif isinstance(event, TaskEnded):
            self.task_seconds.append(time.perf_counter() - self.started - sum(self.task_seconds))


def measure(stream: Any, method: str, engine: str, precision: str, epochs: int, seed: int, device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    clock = Clock()
    settings = {"learn.epochs": epochs, "run.engine": engine, "run.precision": precision}
    results = run(Job(stream, method, seed=seed, device=str(device), settings=settings), on_event=clock)
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
        "task_seconds": clock.task_seconds,
        "acc": results.acc,
        "bwt": results.bwt,
        "acc_task_il": results.acc_task_il,
        "peak_gpu_bytes": peak,
    }


def measure_together(
    name: str, data: Path | None, method: str, engine: str, precision: str, epochs: int, seeds: int, device: torch.device
) -> list[dict[str, Any]]:
    """All seeds at once; the data is loaded, and kernels are compiled in short runs, before the clock starts."""
    settings = {"learn.epochs": epochs, "run.engine": engine, "run.precision": precision}
    jobs = [Job(name, method, seed, settings, data=data) for seed in range(seeds)]
    executor, finished = LocalExecutor(str(device), jobs_at_once=seeds), list[Results]()

    def collect(event: Event) -> None:
        raise_failure(event)
        if isinstance(event, JobFinished):
            finished.append(event.results)

    executor.carry_out([replace(job, settings={**settings, "learn.epochs": 2}) for job in jobs], raise_failure)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    executor.carry_out(jobs, collect)
    seconds = (time.perf_counter() - started) / seeds
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return [
        {
            "stream": name,
            "method": method,
            "engine": f"{engine}, {seeds} side by side",
            "precision": precision,
            "epochs": epochs,
            "seed": results.seed,
            "seconds": seconds,
            "task_seconds": [],
            "acc": results.acc,
            "bwt": results.bwt,
            "acc_task_il": results.acc_task_il,
            "peak_gpu_bytes": peak,
        }
        for results in sorted(finished, key=lambda results: results.seed)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("method")
    parser.add_argument("--engines", nargs="+", default=["graphed", "compact", "eager"])
    parser.add_argument("--precision", nargs="+", default=["tf32"])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--side-by-side", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sequence.json"))
    options = parser.parse_args()
    device = find_device(options.device)
    stream = None if options.side_by_side else open_stream(options.stream, data=options.data)
    rows = []
    for engine in options.engines:
        for precision in options.precision:
            if stream is None:
                rows += measure_together(
                    options.stream, options.data, options.method, engine, precision, options.epochs, options.seeds, device
                )
                continue
            for seed in range(options.seeds):
                row = measure(stream, options.method, engine, precision, options.epochs, seed, device)
                rows.append(row)
                print(row, flush=True)
    table = Table(title=f"{options.stream}, {options.method}, {options.epochs} epochs, {device_name(device)}")
    for column in ("engine", "precision", "seed", "seconds", "per task", "ACC", "BWT", "task-IL", "peak GB"):
        table.add_column(column)
    for row in rows:
        task_seconds = " ".join(f"{seconds:.1f}" for seconds in row["task_seconds"])
        peak = "-" if row["peak_gpu_bytes"] is None else f"{row['peak_gpu_bytes'] / 1e9:.2f}"
        accuracies = [f"{row[name]:.2f}" if row[name] is not None else "-" for name in ("acc", "bwt", "acc_task_il")]
        table.add_row(row["engine"], row["precision"], str(row["seed"]), f"{row['seconds']:.1f}", task_seconds, *accuracies, peak)
    Console().print(table)
    write_results(options.out, rows, device)


if __name__ == "__main__":
    main()
