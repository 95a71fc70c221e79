"""Heads on a frozen encoder: how right each is, by the images of each class, in any cut into calls; against joint logistic regression.

    python -m benchmarks.heads --grocery PATH [--cifar] [--images 1 5 20 0] [--logistic] [--device auto] [--cache FOLDER]

PATH is the Grocery Store Dataset with its official split, `train/CLASS/*` and `test/CLASS/*`. `--cifar` reads CIFAR-10 from the data
folder. `--images` are the training images of each class, 0 all of them. Heads are compared on training images that they have not
learned (a fifth, by a digest); the default head and its shrinkage were chosen by that column. The other columns are of test images:
accuracy in one call and in one call a class, expected calibration error, and how well images of classes that were not learned (the last
quarter of the classes) are told from those that were. `--logistic` adds scikit-learn's LogisticRegressionCV on the same features of all
training images at once. Features are encoded once and kept in the cache folder. Writes JSON with device and commit.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from afaf.encoders.encoder import Encoder
from afaf.encoders.find import find_encoder
from afaf.heads import HEADS
from afaf.lifelong.calibration import calibration_error
from afaf.lifelong.encoded import EncodedModel
from afaf.lifelong.head_state import HeadSettings
from afaf.runs.device import find_device
from afaf.streams.benchmarks import open_stream
from afaf.streams.own import find_class_folders
from benchmarks.provenance import write_results

Features = tuple[Tensor, NDArray[Any]]  # (n, d), and a label each
SHRINKAGES = (0.03, 0.1, 0.3, 0.5, 0.7)
COLUMNS = ("dataset", "images", "head", "held_out", "test", "by_class", "calibration_error", "auroc_unknown", "seconds", "megabytes")


def grocery(encoder: Encoder, path: Path) -> dict[str, Features]:
    parts = {}
    for split in ("train", "test"):
        files = find_class_folders(path / split).files
        encoded = [features for _, _, features in encoder.stream([file for file, _ in files], encoder.read)]
        parts[split] = torch.cat(encoded), np.array([label for _, label in files])
    return parts


def cifar10(encoder: Encoder, data: Path | None, most: int | None) -> dict[str, Features]:
    stream = open_stream("split-cifar10", data=data)
    parts = {}
    for split in ("train", "test"):
        sets = [getattr(task, split) for task in stream]
        images, labels = (np.concatenate([getattr(one, name) for one in sets]) for name in ("images", "labels"))
        some = np.random.default_rng(0).permutation(len(labels))[:most]
        parts[split] = encoder.features(images[some]), labels[some]
    return parts


def cached(folder: Path, name: str, encoder: Encoder, make: Any) -> dict[str, Features]:
    path = folder / f"{name}-{encoder.identity.digest[:12]}-{encoder.identity.preprocessing.size}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = make()
        arrays = {f"{split}_{part}": value for split, (x, y) in made.items() for part, value in (("x", x.numpy()), ("y", y))}
        np.savez(path, **arrays)
    with np.load(path) as read:
        return {split: (torch.from_numpy(read[f"{split}_x"]), read[f"{split}_y"]) for split in ("train", "test")}


def few(train: Features, images: int) -> Features:
    """So many images of each class, chosen at random; 0: all."""
    x, y = train
    order = np.random.default_rng(0).permutation(len(y))
    chosen = [order[y[order] == label][: images or None] for label in np.unique(y)]
    places = np.concatenate(chosen)
    return x[places], y[places]


def taught(encoder: Encoder, head: HeadSettings, calls: list[Features]) -> EncodedModel:
    """A model that has learned features call by call. Their bytes stand in for pixels where images are chosen by a digest."""
    model = EncodedModel.begin(encoder, head)
    for x, y in calls:
        model = model.learn([(x.numpy(), x, y.tolist())])
    return model


def right(model: EncodedModel, x: Tensor, y: NDArray[Any]) -> tuple[float, float]:
    """Accuracy, in percent, and calibration error."""
    labels = list(model.life.known)
    probabilities = torch.cat([model.answers(part)[0] for part in x.split(2048)]).numpy()
    target = np.array([labels.index(label) for label in y.tolist()])
    return 100 * float((probabilities.argmax(1) == target).mean()), calibration_error(probabilities, target)


def held_out(encoder: Encoder, head: HeadSettings, train: Features) -> float:
    """Accuracy on every fifth training image, of a model that learned the others."""
    x, y = train
    aside = np.arange(len(y)) % 5 == 0
    return right(taught(encoder, head, [(x[~aside], y[~aside])]), x[aside], y[aside])[0]


def auroc_unknown(encoder: Encoder, head: HeadSettings, train: Features, test: Features) -> tuple[float, float, float]:
    """Area under the curve of the distance, for classes not learned; share of known and of unknown images above the threshold."""
    labels = np.unique(train[1])
    known = labels[: 3 * len(labels) // 4]
    some = np.isin(train[1], known)
    model = taught(encoder, head, [(train[0][some], train[1][some])])
    distance = torch.cat([model.answers(part)[1].amin(1) for part in test[0].split(2048)]).numpy()
    strange, limit = ~np.isin(test[1], known), model.unknown_above or np.inf
    return float(roc_auc_score(strange, distance)), float((distance[~strange] > limit).mean()), float((distance[strange] > limit).mean())


def measure(encoder: Encoder, name: str, images: int, head: HeadSettings, train: Features, test: Features) -> dict[str, Any]:
    started = time.perf_counter()
    model = taught(encoder, head, [train])
    model.linear, model.temperature  # noqa: B018
    seconds = time.perf_counter() - started
    accuracy, error = right(model, *test)
    apart = taught(encoder, head, [(train[0][train[1] == label], train[1][train[1] == label]) for label in np.unique(train[1])])
    auroc, false_unknown, true_unknown = auroc_unknown(encoder, head, train, test)
    row = {"dataset": name, "images": images, "head": _named(head), "test": accuracy, "by_class": right(apart, *test)[0]}
    row |= {"held_out": held_out(encoder, head, train) if images != 1 else None, "calibration_error": error}
    row |= {"auroc_unknown": auroc, "known_called_unknown": false_unknown, "unknown_called_unknown": true_unknown}
    return row | {"seconds": seconds, "megabytes": len(model.to_bytes()) / 1e6}


def _named(head: HeadSettings) -> str:
    return head.name + "".join(f" {name}={value:g}" for name, value in head.options.items())


def logistic(name: str, train: Features, test: Features) -> dict[str, Any]:
    started = time.perf_counter()
    model = make_pipeline(
        StandardScaler(), LogisticRegressionCV(Cs=np.logspace(-5, 0, 6), l1_ratios=(0,), cv=3, scoring="accuracy", max_iter=300, n_jobs=-1)
    )
    model.fit(train[0].numpy(), train[1])
    row = {"dataset": name, "images": 0, "head": "LogisticRegressionCV, joint", "test": 100 * model.score(test[0].numpy(), test[1])}
    return row | {"seconds": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grocery", type=Path)
    parser.add_argument("--cifar", action="store_true")
    parser.add_argument("--most", type=int, help="CIFAR-10: at most so many training and test images")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 5, 20, 0], help="of each class; 0 is all")
    parser.add_argument("--heads", nargs="+", default=list(HEADS))
    parser.add_argument("--shrinkages", action="store_true", help="lda also with fixed shrinkages")
    parser.add_argument("--logistic", action="store_true")
    parser.add_argument("--encoder", default="efficientnet-lite0")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("benchmarks/cache"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/heads.json"))
    options = parser.parse_args()
    device = find_device(options.device)
    encoder = find_encoder(options.encoder, device)
    sets: dict[str, dict[str, Features]] = {}
    if options.grocery:
        sets["grocery"] = cached(options.cache, "grocery", encoder, lambda: grocery(encoder, options.grocery))
    if options.cifar:
        name = "cifar10" + (f"-{options.most}" if options.most else "")
        sets[name] = cached(options.cache, name, encoder, lambda: cifar10(encoder, options.data, options.most))
    heads = [HeadSettings(name) for name in options.heads]
    heads += [HeadSettings("lda", {"shrinkage": value}) for value in SHRINKAGES if options.shrinkages]
    rows: list[dict[str, Any]] = []
    for name, parts in sets.items():
        for images in options.images:
            for head in heads:
                rows.append(measure(encoder, name, images, head, few(parts["train"], images), parts["test"]))
                print(json.dumps(rows[-1]), flush=True)
                write_results(options.out, rows, device)
        if options.logistic:
            rows.append(logistic(name, parts["train"], parts["test"]))
            print(json.dumps(rows[-1]), flush=True)
            write_results(options.out, rows, device)
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*("-" if row.get(column) is None else _shown(row[column]) for column in COLUMNS))
    Console().print(table)


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) and value < 1 else f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
