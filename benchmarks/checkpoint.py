"""What checkpoints cost: the same run with and without them, taking turns in one process.

    python -m benchmarks.checkpoint split-cifar10 afaf [--epochs 40] [--rounds 3] [--device auto]

`none` writes configuration, log, model and results, but no checkpoint; `default` checkpoints at ends of tasks and every 30 seconds; `every
epoch` at each. A first run warms up and is not counted. Prints a table and writes JSON with device and commit; the ratios to `none` are the
result. `stalled` is the time in which learning waited: for copies to the host, and for a file that was still being written.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from afaf.runs import runner
from afaf.runs.checkpoint import Checkpoints
from afaf.runs.device import device_name, find_device
from afaf.runs.job import Job
from afaf.runs.progress import Position, RunProgress
from afaf.streams.benchmarks import open_stream
from afaf.streams.tasks import Stream
from afaf.training.learner import Learner
from benchmarks.provenance import write_results

KINDS: dict[str, dict[str, Any]] = {"none": {}, "default": {}, "every epoch": {"run.checkpoint": 0}}


class Timed(Checkpoints):
    """Keeps account of how long learning waited for checkpoints, and how many there were."""

    stalled = 0.0
    taken = 0

    def save(self, learner: Learner, position: Position, progress: RunProgress) -> None:
        started = time.perf_counter()
        super().save(learner, position, progress)
        Timed.stalled += time.perf_counter() - started
        Timed.taken += 1

    def wait(self) -> None:
        started = time.perf_counter()
        super().wait()
        Timed.stalled += time.perf_counter() - started


class Nothing(Timed):
    """No checkpoints."""

    def due(self) -> bool:
        return False

    def save(self, learner: Learner, position: Position, progress: RunProgress) -> None:
        pass


def measure(stream: Stream, method: str, kind: str, epochs: int | None, device: torch.device) -> dict[str, Any]:
    """One whole run into a fresh folder."""
    runner.Checkpoints = Nothing if kind == "none" else Timed  # type: ignore[attr-defined]
    Timed.stalled, Timed.taken = 0.0, 0
    settings = {**KINDS[kind], **({} if epochs is None else {"learn.epochs": epochs})}
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        results = runner.run(Job(stream, method, device=str(device), out=Path(folder) / "run", settings=settings))
        seconds = time.perf_counter() - started
        size = sum(path.stat().st_size for path in (Path(folder) / "run" / "checkpoints").glob("*"))
    return {"kind": kind, "seconds": seconds, "stalled": Timed.stalled, "taken": Timed.taken, "bytes_kept": size, "acc": results.acc}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("method")
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/checkpoint.json"))
    options = parser.parse_args()
    device = find_device(options.device)
    stream = open_stream(options.stream, data=options.data)
    measure(stream, options.method, "default", options.epochs, device)
    measured = [measure(stream, options.method, kind, options.epochs, device) for _ in range(options.rounds) for kind in KINDS]
    rows = []
    for kind in KINDS:
        mine = [row for row in measured if row["kind"] == kind]
        middle = {name: statistics.median(row[name] for row in mine) for name in ("seconds", "stalled", "taken", "bytes_kept")}
        about = {"stream": options.stream, "method": options.method, "epochs": options.epochs, "rounds": options.rounds}
        rows.append({**about, "kind": kind, **middle, "all_seconds": [row["seconds"] for row in mine], "acc": mine[0]["acc"]})
    without = rows[0]["seconds"]
    table = Table(title=f"{options.stream}, {options.method}, {device_name(device)}, medians of {options.rounds}")
    for column in ("checkpoints", "seconds", "over none", "stalled", "of the run", "taken", "MB kept"):
        table.add_column(column, justify="right")
    for row in rows:
        row["over_none"], row["stalled_share"] = row["seconds"] / without, row["stalled"] / row["seconds"]
        table.add_row(
            row["kind"],
            f"{row['seconds']:.2f}",
            f"{row['over_none']:.3f}",
            f"{row['stalled']:.3f}",
            f"{100 * row['stalled_share']:.2f} %",
            str(int(row["taken"])),
            f"{row['bytes_kept'] / 1e6:.1f}",
        )
    Console().print(table)
    write_results(options.out, rows, device)


if __name__ == "__main__":
    main()
