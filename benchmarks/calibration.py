"""Which tails the draws that fit a temperature need (heads/calibration.py), on training images alone.

    python -m benchmarks.calibration [--grocery PATH] [--cifar] [--most 5000] [--images 5 20 0] [--splits 4]

For each head, the temperature that fits the answers on held-out training images of several splits together, and, for several degrees of
freedom, the one that follows from the sums of a single split, as a ratio to the former. Writes JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from afaf.encoders.find import find_encoder
from afaf.heads import HEADS
from afaf.heads.calibration import Unseen, _minimum
from afaf.heads.features import evened
from afaf.heads.sums import Sums
from afaf.runs.device import find_device
from benchmarks.heads import Features, cached, cifar10, few, grocery
from benchmarks.provenance import write_results

FREEDOMS = (3, 4, 5, 8, 100)
HELD_OUT = 0.2


def measure(name: str, head: str, train: Features, splits: int) -> dict[str, Any]:
    """The fitted temperature, and the mean over splits of the logarithm of each ratio to it."""
    x, y = evened(train[0]), torch.from_numpy(np.unique(train[1], return_inverse=True)[1])
    k, logits, target = int(y.max()) + 1, [], []
    found: dict[int, list[float]] = {freedom: [] for freedom in FREEDOMS}
    for split in range(splits):
        aside = torch.rand(len(y), generator=torch.Generator().manual_seed(split)) < HELD_OUT
        taught, held = (Sums.of(x[some], y[some], k) for some in (~aside, aside))
        solved, unseen = HEADS[head].solve(taught), Unseen.of(taught, held)
        usable = aside & torch.isfinite(solved.bias)[y]
        logits.append(solved(x[usable]).nan_to_num(neginf=-1e6))
        target.append(y[usable])
        for freedom, values in found.items():
            values += [] if unseen is None else [unseen.temperature(solved, freedom)]
    weights = 1 / torch.bincount(torch.cat(target), minlength=k).clamp(min=1).double()
    fitted = _minimum(lambda power: float(F.cross_entropy(torch.cat(logits) / 10**power, torch.cat(target), weights)))
    ratios = {str(freedom): exp(statistics.mean(log(t / fitted) for t in values)) for freedom, values in found.items() if values}
    return {"dataset": name, "images_learned": len(y), "head": head, "fitted": fitted, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grocery", type=Path)
    parser.add_argument("--cifar", action="store_true")
    parser.add_argument("--most", type=int, help="CIFAR-10: at most so many training and test images")
    parser.add_argument("--images", type=int, nargs="+", default=[5, 20, 0], help="of each class; 0 is all")
    parser.add_argument("--heads", nargs="+", default=["lda", "ridge", "nearest-mean"])
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--encoder", default="efficientnet-lite0")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("benchmarks/cache"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/calibration.json"))
    options = parser.parse_args()
    device = find_device(options.device)
    encoder = find_encoder(options.encoder, device)
    sets: dict[str, Features] = {}
    if options.grocery:
        sets["grocery"] = cached(options.cache, "grocery", encoder, lambda: grocery(encoder, options.grocery))["train"]
    if options.cifar:
        name = "cifar10" + (f"-{options.most}" if options.most else "")
        sets[name] = cached(options.cache, name, encoder, lambda: cifar10(encoder, options.data, options.most))["train"]
    rows: list[dict[str, Any]] = []
    for name, train in sets.items():
        for images in options.images:
            for head in options.heads:
                rows.append({"images": images, **measure(name, head, few(train, images), options.splits)})
                print(json.dumps(rows[-1]), flush=True)
    for freedom in map(str, FREEDOMS):
        logs = [log(row["ratios"][freedom]) for row in rows if freedom in row["ratios"]]
        print(f"{freedom} degrees of freedom: root mean square of log ratios {statistics.mean(v * v for v in logs) ** 0.5:.3f}")
    write_results(options.out, rows, device)


if __name__ == "__main__":
    main()
