"""What Ray costs: runs on a cluster of this machine against the same runs in as many plain processes, all warm, one thread each.

    python -m benchmarks.ray_overhead [--workers 1] [--runs 4] [--epochs 120] [--repeat 3]

Both are timed in turn, `repeat` times; the median ratio counts. The goal is 1.10 for runs of 10 seconds. The other rows are constants from
which docs/scale.md computes what saturates first.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from afaf.heads.sums import Sums
from afaf.lifelong.head_state import State, Summed
from afaf.runs.events import raise_failure
from afaf.runs.job import Job
from afaf.sweeps.executor import LocalExecutor, find_executor
from afaf.sweeps.store import Store
from benchmarks.provenance import write_results

GOAL = 1.10
LINES = 10_000
Row = dict[str, Any]


def jobs(folder: Path, runs: int, epochs: int) -> list[Job]:
    settings = {"learn.epochs": epochs}
    return [Job("split-digits", "afaf", seed, settings, device="cpu", out=folder / str(seed), resume=True) for seed in range(runs)]


def plain_process(connection: Any) -> None:
    """Carry out jobs whenever some arrive; the process stays warm between."""
    executor = LocalExecutor("cpu")
    while (some := connection.recv()) is not None:
        executor.carry_out(some, raise_failure)
        connection.send(True)


@contextlib.contextmanager
def plain_processes(workers: int) -> Iterator[Callable[[list[Job]], None]]:
    """A function that shares jobs out among warm processes and waits for them."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(workers)]
    processes = [context.Process(target=plain_process, args=(there,)) for _, there in pairs]
    for process in processes:
        process.start()

    def carry_out(some: list[Job]) -> None:
        for i, (here, _) in enumerate(pairs):
            here.send(some[i::workers])
        for here, _ in pairs:
            here.recv()

    yield carry_out
    for (here, _), process in zip(pairs, processes, strict=True):
        here.send(None)
        process.join()


def compare(workers: int, runs: int, epochs: int, repeat: int) -> list[Row]:
    folder = Path(tempfile.mkdtemp())
    began = time.perf_counter()
    executor = find_executor("ray", "cpu", jobs_at_once=workers)
    start = time.perf_counter() - began
    with contextlib.closing(executor), plain_processes(workers) as plain:
        began = time.perf_counter()
        executor.carry_out(jobs(folder / "warm", workers, 1), raise_failure)
        first = time.perf_counter() - began
        plain(jobs(folder / "warm-plain", workers, 1))
        times: dict[str, list[float]] = {"plain": [], "ray": []}
        for i in range(repeat):
            for name, carry_out in (("plain", plain), ("ray", lambda some: executor.carry_out(some, raise_failure))):
                began = time.perf_counter()
                carry_out(jobs(folder / f"{name}-{i}", runs, epochs))
                times[name].append(time.perf_counter() - began)
        message = seconds_a_message()
    ratio = statistics.median(there / here for here, there in zip(times["plain"], times["ray"], strict=True))
    each = statistics.median(times["plain"]) * workers / runs
    return [
        {"what": "ratio of Ray to plain processes", "value": ratio, "goal": GOAL, "times": times, "workers": workers, "runs": runs},
        {"what": "seconds of a run in a plain process", "value": each},
        {"what": "seconds that Ray adds to a run", "value": (ratio - 1) * each},
        {"what": "seconds to start a cluster on this machine", "value": start},
        {"what": "seconds until the first worker has imported torch and ended its first run", "value": first},
        {"what": "seconds of the driver for a message of a worker", "value": message},
    ]


def seconds_a_message(messages: int = 500) -> float:
    import ray

    def talk(n: int) -> Iterator[list[int]]:
        for i in range(n):
            yield [i]

    remote: Any = ray.remote
    source: Any = remote(num_cpus=0)(talk).remote(messages)
    ray.get(next(source))
    began = time.perf_counter()
    for _ in range(messages - 1):
        ready: Any = ray.wait([source], num_returns=1, timeout=1)[0]
        ray.get(next(ready[0]))
    return (time.perf_counter() - began) / (messages - 1)


def store_rows() -> list[Row]:
    """Appending to, and reading, a folder of results of so many runs."""
    store = Store(Path(tempfile.mkdtemp()))
    R = [[50.0] * (j + 1) for j in range(5)]
    head = {"stream": "split-digits", "method": "afaf", "settings": {"learn.epochs": 10}}
    line = {"acc": 50.0, "bwt": 0.0, "la": 50.0, "acc_task_il": 50.0, "R": R, "R_task_il": R, "confusion": [[5] * 10] * 10}
    began = time.perf_counter()
    for seed in range(100):
        store.append("many", {**head, "seed": seed, **line})
    appended = (time.perf_counter() - began) / 100
    text = (store.folder / "many.jsonl").read_text()
    for i in range(1, LINES // 100):
        with (store.folder / "many.jsonl").open("a") as file:
            file.write(text.replace('"learn.epochs":10', f'"learn.epochs":{10 + i}'))
    return [
        {"what": "seconds to append a line of results, to the disk", "value": appended},
        {"what": f"seconds to read {LINES:,} lines of results", "value": timed(store.read)},
        {"what": "seconds to read them again after one more", "value": timed(store.read)},
    ]


def sum_rows(features: int = 1280) -> list[Row]:
    """Adding the sums of a shard, which a worker returns, to those so far."""
    rows = []
    for classes in (100, 1_000, 10_000):
        sums = State(Sums.empty(features, classes), Sums.empty(features, classes))
        shard = Summed([str(c) for c in range(classes)], sums, torch.zeros(1, features), torch.zeros(1, dtype=torch.int64))
        size = sum(tensor.nbytes for part in (sums.taught, sums.held) for tensor in (part.counts, part.totals, part.gram))
        began = time.perf_counter()
        shard = shard + shard
        seconds = time.perf_counter() - began
        rows.append({"what": f"seconds to add the sums of a shard, {classes:,} classes", "value": seconds, "bytes": size})
    return rows


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ray_overhead.json"))
    options = parser.parse_args()
    # For all processes that are started from here: one thread, and the same priority, which Ray lowers for its workers.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", RAY_worker_niceness="0")
    rows = [*compare(options.workers, options.runs, options.epochs, options.repeat), *store_rows(), *sum_rows()]
    table = Table("what", "value")
    for row in rows:
        table.add_row(row["what"], f"{row['value']:.4g}")
    Console().print(table)
    write_results(options.out, rows, torch.device("cpu"))


if __name__ == "__main__":
    main()
