"""How near the temperature that follows from sums (heads/calibration.py) comes to the best one, on training images alone.

    python -m benchmarks.calibration [--grocery PATH] [--cifar] [--most 4000] [--images 1 2 5 20 0] [--splits 3]

So many training images of each class are learned (0: seven tenths of all), and the others judge. For each head: the temperature at which
the judges' labels are likeliest, in units of the mean margin between classes (`typical`); as ratios to it the temperature of afaf, the one
without the typical temperature (`held-out alone`), and those of other degrees of freedom; the calibration error of each. Writes JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.encoders.find import find_encoder
from afaf.heads import HEADS
from afaf.heads.calibration import Unseen, mean_margin, minimum, temperature
from afaf.heads.features import evened
from afaf.heads.sums import Sums
from afaf.lifelong.calibration import calibration_error
from afaf.runs.device import find_device
from benchmarks.heads import Features, cached, cifar10, grocery
from benchmarks.provenance import write_results

FREEDOMS = (3, 8, 100)  # besides the one in use
HELD_OUT = 0.2
LEARNED = 0.7  # of all images


def measure(name: str, head: str, train: Features, images: int, splits: int) -> dict[str, Any]:
    x, y = evened(train[0]), torch.from_numpy(np.unique(train[1], return_inverse=True)[1])
    k, found, typical = int(y.max()) + 1, defaultdict[str, list[tuple[float, float]]](list), []
    for split in range(splits):
        draw = torch.Generator().manual_seed(split)
        order = torch.randperm(len(y), generator=draw)
        learned = torch.cat([order[y[order] == c][:images] for c in range(k)]) if images else order[: int(LEARNED * len(y))]
        judges = torch.ones(len(y), dtype=torch.bool).index_fill(0, learned, False)
        aside = torch.rand(len(learned), generator=draw) < HELD_OUT
        taught, held = (Sums.of(x[learned[some]], y[learned[some]], k) for some in (~aside, aside))
        solved, trial = (HEADS[head].solve(sums) for sums in (taught + held, taught))
        unseen, means = Unseen.of(taught, held), (taught + held).means
        logits, target = solved(x[judges]), y[judges]
        best = best_temperature(logits, target)
        margin = mean_margin(solved, means)
        typical.append(log(best / margin))
        tried = {"best": best, "afaf": temperature(solved, means, trial, unseen)}
        if unseen is not None and mean_margin(trial, unseen.means) > 0:
            unit = margin / mean_margin(trial, unseen.means)
            tried["held-out alone"] = unit * unseen.temperature(trial)
            tried |= {f"t of {freedom}": unit * unseen.temperature(trial, freedom) for freedom in FREEDOMS}
        for way, t in tried.items():
            found[way].append((log(t / best), calibration_error(torch.softmax(logits / t, 1).numpy(), target.numpy())))
    row: dict[str, Any] = {"dataset": name, "images": images, "head": head, "typical": exp(statistics.mean(typical))}
    row["ratios"] = {way: exp(statistics.mean(ratio for ratio, _ in values)) for way, values in found.items()}
    return row | {"errors": {way: statistics.mean(error for _, error in values) for way, values in found.items()}}


def best_temperature(logits: Tensor, target: Tensor) -> float:
    """Classes count the same."""
    weights = 1 / torch.bincount(target, minlength=logits.shape[1]).clamp(min=1).double()
    return minimum(lambda power: float(F.cross_entropy(logits / 10**power, target, weights)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grocery", type=Path)
    parser.add_argument("--cifar", action="store_true")
    parser.add_argument("--most", type=int, help="CIFAR-10: at most so many training and test images")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 2, 5, 20, 0], help="of each class; 0 is all")
    parser.add_argument("--heads", nargs="+", default=["lda", "ridge", "nearest-mean"])
    parser.add_argument("--splits", type=int, default=3)
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
                rows.append(measure(name, head, train, images, options.splits))
                print(json.dumps(rows[-1]), flush=True)
                write_results(options.out, rows, device)
    for way in dict.fromkeys(way for row in rows for way in row["ratios"]):
        logs = [log(row["ratios"][way]) for row in rows if way in row["ratios"]]
        print(f"{way}: root mean square of log ratios {statistics.mean(v * v for v in logs) ** 0.5:.3f}")


if __name__ == "__main__":
    main()
