"""How well a model knows its classes after learning them a few at a time: the handwritten digits that come with scikit-learn.

    python -m benchmarks.lifelong [--seeds 3] [--jobs 1] [--out benchmarks/results/lifelong.json]

With defaults throughout; three quarters of the images are learned, a quarter is the test. For each number of classes a call: accuracy among
all ten classes, with and without none-of-mine images, and the calibration error of probabilities (15 bins) with the model's temperature
and without. `joint` learns all ten classes in one call of a model made for one.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from afaf import AFAFClassifier
from afaf.lifelong.calibration import calibration_error
from afaf.lifelong.life import Negatives
from benchmarks.provenance import write_results

CASES: list[tuple[int, Negatives]] = [(10, "auto"), (5, "auto"), (5, "never"), (2, "auto"), (2, "never"), (1, "auto"), (1, "never")]


def measure(classes_per_call: int, negatives: Negatives, seed: int) -> dict[str, Any]:
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) * 15.9375).astype(np.uint8)
    x, x_test, y, y_test = train_test_split(images, labels, test_size=0.25, stratify=labels, random_state=seed)
    started = time.perf_counter()
    model = AFAFClassifier(max_tasks=10 // classes_per_call, negatives=negatives, random_state=seed, device="cpu")
    for first in range(0, 10, classes_per_call):
        part = (y >= first) & (y < first + classes_per_call)
        model.partial_fit(x[part], y[part])
    seconds = time.perf_counter() - started
    return {
        "classes_per_call": classes_per_call,
        "negatives": negatives,
        "seed": seed,
        "accuracy": 100 * model.score(x_test, y_test),
        "calibration_error": calibration_error(model.predict_proba(x_test), y_test),
        "calibration_error_without": calibration_error(softmax(model._lifelong.logits(x_test[..., None])), y_test),
        "temperature": model._lifelong.temperature,
        "seconds": round(seconds, 1),
    }


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """The order of digits learned in order is that of their class ids."""
    e = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    found: NDArray[Any] = e / e.sum(1, keepdims=True)
    return found


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of docs/when.md."""
    headings = ("classes a call", "none-of-mine images", "seeds", "accuracy, %", "calibration error", "without temperature")
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for case in CASES:
        found = [row for row in rows if (row["classes_per_call"], row["negatives"]) == case]
        if not found:
            continue
        accuracy = [row["accuracy"] for row in found]
        errors = [np.mean([row[name] for row in found]) for name in ("calibration_error", "calibration_error_without")]
        calls = "all ten, one call" if case[0] == 10 else str(case[0])
        used = "no" if case[1] == "never" or case[0] == 10 else "yes"
        spread = f" ± {np.std(accuracy, ddof=1):.1f}" if len(accuracy) > 1 else ""
        lines.append(f"| {calls} | {used} | {len(found)} | {np.mean(accuracy):.1f}{spread} | {errors[0]:.3f} | {errors[1]:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="so many at once; seconds then mean little")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/lifelong.json"))
    parser.add_argument("--table", action="store_true", help="only print the table of docs/when.md, from what was measured")
    options = parser.parse_args()
    if options.table:
        print(markdown(json.loads(options.out.read_text())["rows"]))
        return
    rows: list[dict[str, Any]] = []
    runs = [(classes_per_call, negatives, seed) for seed in range(options.seeds) for classes_per_call, negatives in CASES]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as processes:
        for row in processes.map(measure, *zip(*runs, strict=True)):
            rows.append(row)
            print(json.dumps(row), flush=True)
            write_results(options.out, rows, torch.device("cpu"))
    print(markdown(rows))


if __name__ == "__main__":
    main()
