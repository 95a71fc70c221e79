"""How long a built-in stream takes to load from a warm disk, and how much memory it takes at peak: `python -m benchmarks.load`.

Each repetition is a process of its own. Memory is the process's highest resident size less what it had after the imports, as a
ratio to the raw size of the images; the goals for CIFAR-10 are 2 seconds and 1.3 times its raw size.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from afaf.runs.provenance import commit
from afaf.streams.benchmarks import BENCHMARKS
from afaf.streams.sources import data_folder

GOAL_SECONDS, GOAL_RATIO = 2.0, 1.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("streams", nargs="*", default=["split-cifar10"], help="built-in streams; by default split-cifar10")
    parser.add_argument("--data", type=Path, help="folder of the datasets; by default AFAF_DATA")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/load.json"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = data_folder(arguments.data)
    if arguments.child:
        print(json.dumps(measure(arguments.streams[0], folder)))
        return
    rows = [summary(name, [in_a_process(name, folder) for _ in range(arguments.repeat + 1)][1:]) for name in arguments.streams]
    Console().print(as_table(rows))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    measured = {"commit": commit(), "machine": machine(), "repeat": arguments.repeat, "rows": rows}
    arguments.out.write_text(json.dumps(measured, indent=2) + "\n", "utf-8")


def in_a_process(stream: str, folder: Path) -> dict[str, Any]:
    """One measurement; the first of each stream only warms the disk's cache."""
    command = [sys.executable, "-m", "benchmarks.load", stream, "--child", "--data", str(folder)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def measure(name: str, folder: Path) -> dict[str, Any]:
    benchmark = BENCHMARKS[name]
    before = resident("VmRSS")
    start = time.perf_counter()
    stream = benchmark.load(folder)
    seconds = time.perf_counter() - start
    raw = sum(split.images.nbytes for task in stream for split in (task.train, task.test))
    return {"seconds": seconds, "raw_bytes": raw, "peak_bytes": resident("VmHWM") - before, "held_bytes": resident("VmRSS") - before}


def resident(field: str) -> int:
    """Bytes resident now (VmRSS) or at most (VmHWM); where the system does not say, the most is taken for both."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return int(lines[field].split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def summary(name: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The median time and the highest memory."""
    seconds = sorted(each["seconds"] for each in found)
    raw, peak = found[0]["raw_bytes"], max(each["peak_bytes"] for each in found)
    return {
        "stream": name,
        "seconds": seconds[len(seconds) // 2],
        "seconds_all": seconds,
        "raw_bytes": raw,
        "peak_bytes": peak,
        "peak_ratio": peak / raw,
    }


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table()
    for heading in ("stream", "seconds (median)", "raw", "peak above imports", "ratio", "goals"):
        table.add_column(heading, justify="left" if heading == "stream" else "right")
    for row in rows:
        met = row["seconds"] < GOAL_SECONDS and row["peak_ratio"] <= GOAL_RATIO
        cifar10 = row["stream"] in ("split-cifar10", "sim-cifar10")  # the goals are for CIFAR-10
        table.add_row(
            row["stream"],
            f"{row['seconds']:.2f}",
            f"{row['raw_bytes'] / 1e6:.1f} MB",
            f"{row['peak_bytes'] / 1e6:.1f} MB",
            f"{row['peak_ratio']:.3f}",
            ("met" if met else "missed") if cifar10 else "",
        )
    return table


def machine() -> dict[str, Any]:
    return {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}


if __name__ == "__main__":
    main()
