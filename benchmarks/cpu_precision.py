"""An epoch of afaf-plus on a CPU in bf16 against one in fp32, for networks of the zoo, in one process.

    python -m benchmarks.cpu_precision [--images 512] [--networks alexnet small-cnn resnet18]

Two tasks of random images of 32 x 32 pixels, with the preset of afaf-plus; of each network and precision the median of the epochs after
the first. Needs a CPU with instructions for bf16; elsewhere both are fp32. The ratios are the result, not the seconds.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from statistics import median

import numpy as np

import afaf
from afaf.extend import EpochEnded, Event
from afaf.streams.tasks import Stream
from afaf.training.precision import computes_bf16

EPOCHS = 4


def seconds(network: str, precision: str, images: int) -> float:
    """An epoch of two tasks with this many images each."""
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (2 * images, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(2 * images) // (images // 2)
    ended: list[list[float]] = [[], []]

    def note(event: Event) -> None:
        if isinstance(event, EpochEnded):
            ended[event.report.task - 1].append(time.perf_counter())

    stream = Stream.from_arrays(pixels, labels, x_test=pixels[:: images // 4], y_test=labels[:: images // 4], augment="crop-flip")
    settings = {"network.name": network, "learn.epochs": EPOCHS, "run.precision": precision}
    afaf.run(stream, "afaf-plus", device="cpu", settings=settings, on_event=note)
    return median(after - before for times in ended for before, after in pairwise(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512, help="of each task")
    parser.add_argument("--networks", nargs="+", default=["alexnet", "small-cnn", "resnet18"])
    given = parser.parse_args()
    print(f"instructions for bf16: {'yes' if computes_bf16() else 'no'}")
    for network in given.networks:
        whole, half = (seconds(network, precision, given.images) for precision in ("fp32", "bf16"))
        print(f"{network}: bf16 takes {half / whole:.2f} of the time of fp32 ({half:.2f} s and {whole:.2f} s)")


if __name__ == "__main__":
    main()
