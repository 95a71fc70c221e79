"""From scratch or with an encoder: photographs learned in five calls, by the number of images of each class.

    python -m benchmarks.photos [--grocery PATH] [--images 1 5 20 100 500] [--candidates alexnet small-cnn afaf-plus patches]
    python -m benchmarks.photos --table

`AFAFClassifier` with its defaults: networks, trained with cropping and flipping (`afaf-plus` is small-cnn with that method), and encoders;
`afaf on features` is a network on features of efficientnet-lite0. CIFAR-10 is judged on 200 training images of each class that were not
learned from, among all ten classes: defaults are chosen by this, so no test image may have a say in them. With --grocery, the Grocery Store
Dataset (a folder with train and test) is judged on its test images instead. Networks see images of 32 x 32 pixels. Writes JSON with device
and commit, in which results of the same case are replaced; --table prints it in Markdown.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afaf import AFAFClassifier
from afaf.network.zoo import NETWORKS
from afaf.runs.device import find_device
from afaf.runs.provenance import commit
from afaf.streams.benchmarks import open_stream
from afaf.streams.own import find_class_folders, read_images
from benchmarks.provenance import write_results

JUDGED = 200  # images of each class
CALLS = 5
ON_FEATURES = "afaf on features"  # of efficientnet-lite0
CANDIDATES = ("alexnet", "small-cnn", "afaf-plus", "patches", ON_FEATURES, "efficientnet-lite0")
TRAINED = (*NETWORKS, "afaf-plus")
CASE = ("dataset", "candidate", "images", "seed")

Arrays = tuple[NDArray[Any], NDArray[Any]]


def cifar(data: Path | None) -> tuple[Arrays, Arrays]:
    """Images to learn, and images to judge by."""
    tasks = list(open_stream("split-cifar10", data=data))
    x, y = (np.concatenate([getattr(task.train, name) for task in tasks]) for name in ("images", "labels"))
    judged = np.concatenate([np.flatnonzero(y == label)[-JUDGED:] for label in np.unique(y)])
    return (np.delete(x, judged, 0), np.delete(y, judged)), (x[judged], y[judged])


def grocery(path: Path, size: int) -> tuple[Arrays, Arrays]:
    found = []
    for part in ("train", "test"):
        files = find_class_folders(path / part).files
        found.append((read_images([file for file, _ in files], size, 3)[0], np.array([label for _, label in files])))
    return found[0], found[1]


def in_calls(learned: Arrays, images: int) -> list[Arrays]:
    """So many images of each class (0: all), a fifth of the classes at a time."""
    x, y = learned
    order = np.random.default_rng(0).permutation(len(y))
    places = {label: order[y[order] == label][: images or None] for label in np.unique(y)}
    return [(x[some], y[some]) for some in (np.concatenate([places[c] for c in part]) for part in np.array_split(list(places), CALLS))]


def measure(candidate: str, calls: list[Arrays], judged: Arrays, seed: int, device: str) -> dict[str, Any]:
    started = time.perf_counter()
    how: dict[str, Any] = {"encoder": candidate}
    if candidate == ON_FEATURES:
        how = {"encoder": "efficientnet-lite0", "method": "afaf", "max_tasks": len(calls)}
    if candidate in TRAINED:
        network, method = (candidate, "afaf") if candidate in NETWORKS else ("small-cnn", candidate)
        how = {"network": network, "method": method, "augment": "crop-flip", "max_tasks": len(calls)}
    model = AFAFClassifier(**how, random_state=seed, device=device)
    for x, y in calls:
        model.partial_fit(x, y)
    return {"seconds": round(time.perf_counter() - started, 1), "accuracy": 100 * model.score(*judged)}


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each dataset and candidate, a column for each number of images; the mean over seeds."""
    numbers = sorted({row["images"] for row in rows}, key=lambda n: n or np.inf)
    lines = ["| dataset | " + " | ".join(["", *(str(n or "all") for n in numbers)]) + " |", "|---" * (len(numbers) + 2) + "|"]
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        for candidate in [c for c in CANDIDATES if any((row["dataset"], row["candidate"]) == (dataset, c) for row in rows)]:
            cells = []
            for n in numbers:
                found = [row["accuracy"] for row in rows if (row["dataset"], row["candidate"], row["images"]) == (dataset, candidate, n)]
                cells.append(f"{np.mean(found):.1f}" if found else "-")
            lines.append(f"| {dataset} | {candidate} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grocery", type=Path)
    parser.add_argument("--images", type=int, nargs="+", default=[1, 5, 20, 100, 500], help="of each class; 0 is all")
    parser.add_argument("--candidates", nargs="+", default=CANDIDATES, help="networks of afaf, or encoders")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/photos.json"))
    parser.add_argument("--table", action="store_true", help="print the results that are there")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    if options.table:
        print(table(rows))
        return
    device = find_device(options.device)
    dataset = "grocery" if options.grocery else "cifar10"
    for candidate in options.candidates:
        size = 32 if candidate in TRAINED else 224
        learned, judged = grocery(options.grocery, size) if options.grocery else cifar(options.data)
        for images in options.images:
            for seed in range(options.seeds if candidate in TRAINED else 1):
                case = dict(zip(CASE, (dataset, candidate, images, seed), strict=True))
                rows = [row for row in rows if any(row[name] != case[name] for name in CASE)]
                found = measure(candidate, in_calls(learned, images), judged, seed, str(device))
                rows.append({**case, **found, "device": str(device), "commit": commit()})
                print(json.dumps(rows[-1]), flush=True)
                write_results(options.out, rows, device)


if __name__ == "__main__":
    main()
