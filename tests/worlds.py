"""Random small worlds: a network, settings, a stream and a seed, learned for real, task by task, and watched."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st

from afaf.errors import CapacityError
from afaf.methods.afaf import AFAF, AFAFOptions
from afaf.methods.base import Method, TaskContext
from afaf.methods.spacenet import SpaceNet, SpaceNetOptions
from afaf.network.net import Network
from afaf.network.spec import Layer, NetworkSpec
from afaf.streams.tasks import Stream
from afaf.training.eager import EagerEngine
from afaf.training.learner import Learner
from afaf.training.settings import LearnSettings, Settings, SparseSettings
from afaf.training.task_data import TaskData
from conftest import small_stream


@dataclass
class World:
    """A method learning a stream; `watch` is called after every epoch's rewiring and after every task."""

    spec: NetworkSpec
    method: Method[Any]
    stream: Stream
    seed: int
    unit: Any = "connection"
    dtype: torch.dtype = torch.float32
    engine: Any = field(default_factory=EagerEngine)

    def owns(self, learner: Learner, predicted: int) -> bool:
        """Whether the tasks own as many weights as predicted; fewer may exist between the neurons drawn for a grouped convolution."""
        grouped = any(edge.groups > 1 for edge in self.spec.edges)
        return learner.params <= predicted if grouped else learner.params == predicted

    def learn(
        self,
        before_task: Callable[[Learner, TaskContext], None] | None = None,
        after_start: Callable[[Learner, TaskContext], None] | None = None,
        after_epoch: Callable[[Learner, TaskContext], None] | None = None,
        after_task: Callable[[Learner, TaskContext], None] | None = None,
    ) -> Learner:
        """Learn the whole stream; a world whose tasks do not fit is no example."""
        learner = Learner.fresh(Network(self.spec, self.seed, dtype=self.dtype), self.unit)
        for tasks in self.method.task_groups(len(self.stream)):
            chosen = [self.stream[number - 1] for number in tasks]
            data = TaskData([(task.train, task.preparation) for task in chosen], dtype=self.dtype)
            held_out = TaskData([(task.test, task.preparation) for task in chosen], dtype=self.dtype)
            context = TaskContext(tasks[-1], tuple(c for task in chosen for c in task.classes), data, held_out)
            if before_task:
                before_task(learner, context)
            learner.begin(context.task, context.classes)
            for phase in range(self.method.phases):
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        self.method.start(learner, context, phase)
                except CapacityError:
                    assume(False)
                if after_start:
                    after_start(learner, context)
                plan = self.method.plan(learner, context, phase)
                plan.held_out = held_out
                self.engine.learn(learner, plan, data, lambda _, context=context: after_epoch(learner, context) if after_epoch else None)
            self.method.finish(learner, context)
            learner.end(context.task)
            if after_task:
                after_task(learner, context)
        return learner


def probe(spec: NetworkSpec, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A few fixed inputs to look at a network with."""
    return torch.randn(8, *spec.input_shape, generator=torch.Generator().manual_seed(0)).to(dtype)


OPS = st.sampled_from([("norm", "relu"), ("relu", "norm"), ("norm",), ("relu",), ("relu", "dropout"), ()])


def groups_of(draw: st.DrawFn, inputs: int, outputs: int) -> int:
    """The groups of a convolution, often more than one."""
    return draw(st.sampled_from([groups for groups in range(inputs, 0, -1) if inputs % groups == 0 == outputs % groups]))


def graph_layers(draw: st.DrawFn, norm: bool) -> list[Layer]:
    """Up to five steps from a random layer each: a convolution, a depthwise or a grouped one, or branches that meet in a sum. The last
    layer is reached from a sum of all ends, so that none is left out."""
    width = st.sampled_from([6, 8, 9, 12])

    def ops() -> tuple[str, ...]:
        return tuple(text for text in draw(OPS) if norm or text != "norm")

    layers, side = [Layer("conv", draw(width), ops(), padding=1)], 8
    for _ in range(draw(st.integers(1, 4))):
        start, neurons = len(layers) + 1, layers[-1].neurons
        kind = draw(st.sampled_from(["conv", "depthwise", "identity", "branches"]))
        kernel, stride, padding = draw(st.sampled_from([(3, 1, 1), (1, 1, 0), (3, 2, 1), (1, 2, 0), (3, 1, 0), (2, 1, 1)]))
        smaller = (side + 2 * padding - kernel) // stride + 1
        if smaller < 3:
            kernel, stride, padding, smaller = 3, 1, 1, side
        if kind == "identity":
            kernel, stride, padding, smaller = 3, 1, 1, side
            layers.append(Layer("conv", neurons, ops(), padding=1, groups=groups_of(draw, neurons, neurons)))
            layers.append(Layer("sum", neurons, ops(), inputs=(start, start + 1)))
        elif kind == "branches":
            outputs = draw(width)
            layers.append(Layer("conv", draw(width), ops(), inputs=(start,), padding=1))
            layers.append(Layer("conv", outputs, ops(), kernel, stride, padding))
            layers.append(Layer("conv", outputs, ops(), kernel, stride, padding, inputs=(start,)))
            layers.append(Layer("sum", outputs, ops(), inputs=(start + 2, start + 3)))
        else:
            outputs = neurons if kind == "depthwise" else draw(width)
            groups = 1 if kind == "depthwise" else groups_of(draw, neurons, outputs)
            layers.append(Layer(kind, outputs, ops(), kernel, stride, padding, groups=groups))
        side = smaller
    last = draw(st.sampled_from(["pool", "global-mean", "pool(3,2,1)", "mean-pool"]))
    layers[-1] = replace(layers[-1], ops=(*(text for text in layers[-1].ops if text != "relu"), "relu", last))
    return layers


def residual_layers(draw: st.DrawFn, norm: bool) -> list[Layer]:
    """A stem and one or two blocks of two convolutions each; a block may halve the maps, and then projects what it adds to."""
    width = st.sampled_from([6, 8, 9, 12])
    before, after = (("norm", "relu"), ("norm",)) if norm else (("relu",), ())
    if draw(st.booleans()):
        before = ("relu", "norm") if norm else ("relu", "dropout")
    neurons = draw(width)
    layers = [Layer("conv", neurons, before, padding=1)]
    for _ in range(draw(st.integers(1, 2))):
        start, stride = len(layers) + 1, draw(st.integers(1, 2))
        added = start
        if stride == 2:
            neurons = draw(width)
            layers.append(Layer("conv", neurons, after, kernel=1, stride=2, inputs=(start,)))
            added = start + 1
        inner = draw(width)
        layers.append(Layer("conv", inner, before, stride=stride, padding=1, inputs=(start,)))
        layers.append(Layer("conv", neurons, after, padding=1, groups=groups_of(draw, inner, neurons)))
        layers.append(Layer("sum", neurons, ("relu",), inputs=(added, len(layers) + 1)))
    layers[-1] = replace(layers[-1], ops=("relu", draw(st.sampled_from(["pool", "global-mean", "pool(3,2,1)"]))))
    return layers


@st.composite
def worlds(
    draw: st.DrawFn,
    *,
    reuse: bool | None = None,
    norm: bool = True,
    unit: str | None = None,
    strict: bool | None = False,
    chain: bool = False,
) -> World:
    """Random networks (dense, convolutional, residual), random percentages, two to four tasks of one to three classes.

    `reuse` and `strict` are drawn, too, if they are None.
    """
    conv = draw(st.booleans())
    width = st.integers(6, 14)
    use_norm = norm and draw(st.booleans())
    after_pool = ("relu", "pool", "norm") if use_norm else ("relu", "dropout", "pool")
    hidden: list[Layer] = []
    residual = not chain and draw(st.booleans())
    if residual:
        hidden += (residual_layers if draw(st.booleans()) else graph_layers)(draw, use_norm)
    elif conv:
        hidden += [Layer("conv", draw(width)) for _ in range(draw(st.integers(0, 1)))]
        hidden.append(Layer("conv", draw(width), after_pool))
    dense = ("norm", "relu", "dropout") if use_norm and draw(st.booleans()) else ("relu", "dropout")
    if not residual:
        hidden += [Layer("dense", draw(width), dense) for _ in range(draw(st.integers(1 if conv else 2, 2)))]
    hidden.append(Layer("dense", draw(st.integers(16, 28)), ("relu", "dropout")))
    classes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    n_tasks = len(classes)
    percent = st.integers(20, 70)
    sparse = SparseSettings(
        alloc={"all": draw(percent), "output": draw(st.integers(8, 100 // n_tasks))},
        density={"all": draw(st.integers(10, 50)), "output": draw(st.integers(30, 90))},
        fixed={"all": draw(st.integers(0, 100 // n_tasks)), "output": 100},
        drop=draw(st.integers(0, 60)),
        unit=unit or draw(st.sampled_from(["connection", "weight"])),
    )
    stream = small_stream(classes, per_class=6, seed=draw(st.integers(0, 99)))
    spec = NetworkSpec("random", (1, 8, 8), tuple(hidden), sum(classes))
    shared = {
        "block_gradient": draw(st.booleans()),
        "reset_importance": draw(st.booleans()),
        "norm_moves": draw(st.booleans()),
        "norms": draw(st.sampled_from(["all", "used"])),
        "strict": draw(st.booleans()) if strict is None else strict,
        "start_from": draw(st.sampled_from(["random", "previous"])),
    }
    settings = Settings(LearnSettings(epochs=3, batch_size=4, lr=0.1), sparse)
    method: Method[Any]
    if draw(st.booleans()) if reuse is None else reuse:
        options = AFAFOptions(
            **shared,
            first_reuse=draw(st.integers(2, 3)),
            l_reuse=draw(st.integers(2, spec.E - 1)),
            candidates=draw(st.sampled_from(["most", "separating", "random", "lowest"])),
            candidate_share=draw(st.integers(0, 60)),
        )
        method = AFAF(options, settings)
    else:
        method = SpaceNet(SpaceNetOptions(**shared), settings)
    try:
        method.check(spec, stream.outline)
    except CapacityError:
        assume(False)
    return World(spec, method, stream, draw(st.integers(0, 10**6)), unit=sparse.unit)
