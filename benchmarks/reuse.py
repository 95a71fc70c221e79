"""An epoch of a reusing AFAF task against one of dense fine-tuning, on a network of the zoo, in one process.

    python -m benchmarks.reuse [--network resnet18] [--width 64] [--images 1000] [--device cpu]

Random images of 32 x 32 pixels, batches of 128. Two tasks are allocated and consolidated with random importances; the third reuses. It is
timed with moving norms and under strict isolation: the second of its epochs. Prints the ratios, which are the result, not the seconds.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from afaf.methods.base import TaskContext
from afaf.network.net import Network
from afaf.runs.device import find_device
from afaf.runs.setup import Setup, set_up
from afaf.streams.benchmarks import outline_of
from afaf.training.compact import neurons_that_matter, trunk_top
from afaf.training.engines import find_engine
from afaf.training.learner import Learner
from benchmarks.step import now, random_data

REUSING = 3


def seconds(learner: Learner, setup: Setup, task: int, images: int, precision: Any) -> float:
    """The second epoch of a task, from the end of the first."""
    device = learner.network.device
    data, times = random_data(task, images, True, device), []
    context = TaskContext(task, (2 * task - 2, 2 * task - 1), data)
    learner.begin(task, context.classes)
    setup.method.start(learner, context, 0)
    plan = setup.method.plan(learner, context, 0)
    if task == REUSING:
        kept, spec = neurons_that_matter(learner, plan), learner.network.spec
        share = sum(len(kept[layer]) for layer in kept) / sum(layer.size for layer in spec.layers)
        print(f"  {100 * share:.0f} % of the neurons are computed with; layers 1..{trunk_top(learner, plan)} of {spec.L} run ahead")
    find_engine("auto", device, precision).learn(learner, plan, data, lambda _: times.append(now(device)))
    return times[1] - times[0]


def allocate(learner: Learner, setup: Setup, task: int, device: torch.device) -> None:
    """A task that is not trained: its neurons and connections, and some of the neurons fixed."""
    context = TaskContext(task, (2 * task - 2, 2 * task - 1), random_data(task, 8, False, device))
    learner.begin(task, context.classes)
    setup.method.start(learner, context, 0)
    draw = torch.Generator().manual_seed(task)
    for neurons in learner.importance.neurons.values():
        neurons.copy_(torch.rand(neurons.shape, generator=draw))
    setup.method.finish(learner, context)
    learner.end(task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="tf32")
    options = parser.parse_args()
    device, outline = find_device(options.device), outline_of("split-cifar10")
    table: dict[str, Any] = {"network": {"name": options.network, "width": options.width}, "learn": {"epochs": 2, "batch_size": 128}}
    setup = set_up(outline, "finetune", table)
    dense = seconds(Learner.fresh(Network(setup.spec, 0, device)), setup, 1, options.images, options.precision)
    print(f"{options.network} of width {options.width}, {options.images} images: dense fine-tuning {dense:.2f} s an epoch")
    for strict in (False, True):
        setup = set_up(outline, "afaf", {**table, "method": {"strict": strict}})
        learner = Learner.fresh(Network(setup.spec, 0, device))
        for task in range(1, REUSING):
            allocate(learner, setup, task, device)
        spent = seconds(learner, setup, REUSING, options.images, options.precision)
        print(f"reusing task, {'strict isolation' if strict else 'moving norms'}: {spent:.2f} s, {spent / dense:.3f} of the dense epoch")


if __name__ == "__main__":
    main()
