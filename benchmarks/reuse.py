"""An epoch of a reusing AFAF task against one of dense fine-tuning, on a network of the zoo, in one process.

    python -m benchmarks.reuse [--network resnet18] [--width 64] [--images 1000] [--device cpu] [--plain]

Random images of 32 x 32 pixels, batches of 128. Two tasks are allocated and consolidated with random importances; the third reuses. It is
timed with norms that all move, with those that the task uses, and under strict isolation: the median of its epochs after the
first. `--plain` also times an ordinary training loop of a ResNet-18 (torch.compile, channels last, the same batches, crops and flips).
Prints the ratios, which are the result, not the seconds.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afaf.methods.base import TaskContext
from afaf.network.net import Network
from afaf.runs.device import find_device
from afaf.runs.setup import Setup, set_up
from afaf.streams.benchmarks import outline_of
from afaf.training.compact import neurons_that_matter, trunk_top
from afaf.training.engines import find_engine
from afaf.training.learner import Learner
from afaf.training.task_data import RngScope
from benchmarks.step import now, random_data

REUSING, EPOCHS = 3, 5


def seconds(learner: Learner, setup: Setup, task: int, images: int, precision: Any) -> float:
    """An epoch of a task, the first left out: it captures or compiles."""
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
    return per_epoch(times)


def per_epoch(ends: list[float]) -> float:
    return median(after - before for before, after in pairwise(ends))


class Block(nn.Module):
    """Two convolutions and what they are added to."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(h)) + self.shortcut(x))


def plain_resnet18(width: int, classes: int) -> nn.Module:
    """The network as people write it, with the stem for CIFAR."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [Block(inputs, outputs, 2 if stage else 1), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def plain_seconds(width: int, images: int, device: torch.device, bf16: bool, mode: str) -> float:
    """An epoch of an ordinary training loop on the same kind of task, compiled by torch.compile."""
    torch.backends.cudnn.benchmark = True
    data = random_data(1, images, True, device)
    model = plain_resnet18(width, 10).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)
    compiled = torch.compile(model, mode=mode)
    started, ends = now(device), []
    for epoch in range(EPOCHS):
        scope = RngScope(0, 1, epoch=epoch)
        order = data.order(scope)
        pictures = data.batch(order, scope)[0].contiguous(memory_format=torch.channels_last)
        for x, y in zip(pictures.split(128), data.labels[order].split(128), strict=True):
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(compiled(x).float(), y)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
        ends.append(now(device))
    print(f"  torch.compile ({mode}): the first epoch took {ends[0] - started:.1f} s")
    return per_epoch(ends)


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
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    device, outline = find_device(options.device), outline_of("split-cifar10")
    table: dict[str, Any] = {"network": {"name": options.network, "width": options.width}, "learn": {"epochs": EPOCHS, "batch_size": 128}}
    setup = set_up(outline, "finetune", table)
    dense = seconds(Learner.fresh(Network(setup.spec, 0, device)), setup, 1, options.images, options.precision)
    print(f"{options.network} of width {options.width}, {options.images} images: dense fine-tuning {dense:.3f} s an epoch")
    if options.plain:
        for mode in ("default", "reduce-overhead") if device.type == "cuda" else ("default",):
            plain = plain_seconds(options.width, options.images, device, options.precision == "bf16", mode)
            print(f"a plain loop ({mode}): {plain:.3f} s; dense fine-tuning is {dense / plain:.3f} of it")
    for way, method in {
        "all norms move": {"norms": "all"},
        "norms that the task uses move": {"norms": "used"},
        "strict isolation": {"strict": True},
    }.items():
        setup = set_up(outline, "afaf", {**table, "method": method})
        learner = Learner.fresh(Network(setup.spec, 0, device))
        for task in range(1, REUSING):
            allocate(learner, setup, task, device)
        spent = seconds(learner, setup, REUSING, options.images, options.precision)
        print(f"reusing task, {way}: {spent:.3f} s, {spent / dense:.3f} of the dense epoch")


if __name__ == "__main__":
    main()
