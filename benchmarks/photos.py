"""Which network suits photographs: CIFAR-10 learned in five calls of two classes, by the number of images of each class.

    python -m benchmarks.photos [--images 100 500 4800] [--seeds 2] [--device auto]

`AFAFClassifier` with its defaults, cropping and flipping, and each network. Judged on 200 training images of each class that were not
learned from, among all ten classes: the default was chosen by this, so no test image may have a say in it. Prints a table and writes
JSON with device and commit.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from afaf import AFAFClassifier
from afaf.runs.device import device_name, find_device
from afaf.streams.benchmarks import open_stream
from benchmarks.provenance import write_results

JUDGED = 200  # images of each class
NETWORKS = ("alexnet", "small-cnn")

Arrays = tuple[NDArray[Any], NDArray[Any]]


def parted(data: Path | None, images: int) -> tuple[list[Arrays], Arrays]:
    """So many images of each class, call by call; and those by which all is judged."""
    calls: list[Arrays] = []
    judged: list[Arrays] = []
    for task in open_stream("split-cifar10", data=data):
        x, y = task.train.images, task.train.labels
        places = [np.flatnonzero(y == label) for label in task.classes]
        learned = np.concatenate([place[:-JUDGED][:images] for place in places])
        held = np.concatenate([place[-JUDGED:] for place in places])
        calls.append((x[learned], y[learned]))
        judged.append((x[held], y[held]))
    return calls, (np.concatenate([x for x, _ in judged]), np.concatenate([y for _, y in judged]))


def measure(network: str, calls: list[Arrays], judged: Arrays, seed: int, device: str, epochs: int | None) -> dict[str, Any]:
    started = time.perf_counter()
    model = AFAFClassifier(max_tasks=len(calls), network=network, augment="crop-flip", random_state=seed, device=device, epochs=epochs)
    for x, y in calls:
        model.partial_fit(x, y)
    seconds = time.perf_counter() - started
    found = {"network": network, "images": len(calls[0][1]) // 2, "seed": seed, "seconds": round(seconds, 1)}
    return {**found, "accuracy": 100 * model.score(*judged)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[100, 500, 4800], help="of each class")
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/photos.json"))
    options = parser.parse_args()
    device = find_device(options.device)
    rows: list[dict[str, Any]] = []
    for images in options.images:
        calls, judged = parted(options.data, images)
        for seed in range(options.seeds):
            for network in options.networks:
                rows.append(measure(network, calls, judged, seed, str(device), options.epochs))
                print(json.dumps(rows[-1]), flush=True)
                write_results(options.out, rows, device)
    table = Table("network", "images of each class", "seed", "accuracy, %", "seconds", title=device_name(device))
    for row in rows:
        table.add_row(*(str(row[name]) for name in ("network", "images", "seed")), f"{row['accuracy']:.1f}", f"{row['seconds']:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
