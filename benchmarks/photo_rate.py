"""How fast photographs are learned: `EncodedModel.learn` against a bare loop that decodes and encodes the same images, in turn.

    python -m benchmarks.photo_rate FOLDER [--images 1000] [--rounds 3] [--threads 2] [--encoder efficientnet-lite0]

FOLDER has a folder of images for each class. Both use the same threads. Prints images a second of each round, the ratio of the medians,
the ratio of processor time, which other load disturbs less, and the seconds of a call's closed form alone (sums, head, calibration).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from afaf.encoders.encoder import Encoder
from afaf.encoders.find import find_encoder
from afaf.lifelong.encode_files import FileParts
from afaf.lifelong.encoded import EncodedModel, Part
from afaf.lifelong.life import Label
from afaf.streams.own import find_class_folders
from benchmarks.provenance import write_results

Files = list[tuple[Path, Label]]


Seconds = tuple[float, float]  # on the clock, and of all processors


def now() -> Seconds:
    return time.perf_counter(), time.process_time()


def since(started: Seconds) -> Seconds:
    wall, cpu = now()
    return wall - started[0], cpu - started[1]


def bare(encoder: Encoder, files: Files) -> Seconds:
    """Seconds to decode and encode all images, batch by batch, one after the other."""
    started = now()
    for start in range(0, len(files), encoder.batch):
        encoder.features(np.concatenate([encoder.read(path) for path, _ in files[start : start + encoder.batch]]))
    return since(started)


def learned(encoder: Encoder, files: Files) -> Seconds:
    """Seconds to learn all images as one call, with the head solved and calibrated."""
    started = now()
    _ready(EncodedModel.begin(encoder).learn(FileParts(encoder, files, "error", "", lambda _: None)))
    return since(started)


def closed_form(encoder: Encoder, files: Files) -> float:
    """Seconds of a call whose images are encoded already."""
    parts: list[Part] = list(FileParts(encoder, files, "error", "", lambda _: None))
    started = time.perf_counter()
    _ready(EncodedModel.begin(encoder).learn(parts))
    return time.perf_counter() - started


def _ready(model: EncodedModel) -> tuple[object, ...]:
    return model.linear, model.temperature, model.unknown_above


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--encoder", default="efficientnet-lite0")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/photo_rate.json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    encoder = find_encoder(options.encoder)
    files = find_class_folders(options.folder).files
    chosen: Files = list(files[:: max(1, len(files) // options.images)][: options.images])
    seconds = [{"bare": bare(encoder, chosen), "learn": learned(encoder, chosen)} for _ in range(options.rounds)]
    rounds = [{name: len(chosen) / wall for name, (wall, _) in each.items()} for each in seconds]
    ratio = statistics.median(r["learn"] for r in rounds) / statistics.median(r["bare"] for r in rounds)
    cpu = statistics.median(s["bare"][1] for s in seconds) / statistics.median(s["learn"][1] for s in seconds)
    row = {"images": len(chosen), "threads": options.threads, "rounds": rounds, "ratio": ratio, "processor_time_ratio": cpu}
    row["closed_form_seconds"] = closed_form(encoder, chosen)
    print(json.dumps(row))
    write_results(options.out, [row], torch.device("cpu"))


if __name__ == "__main__":
    main()
