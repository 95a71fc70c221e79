"""The fast engine for CUDA: a step of the compact network, captured once per task as a CUDA graph and replayed.

A graph can only be replayed on the same memory. So the gathered part of the network, its masks and importances live in fixed tensors
for the whole task. Everything else that a step reads (the images or what the trunk makes of them, labels, dropout) is drawn for a chunk
of the epoch at once and laid out in the order of the steps; a cursor on the device says which batch is next. Results are the compact
engine's up to the precision chosen. Kernels are chosen without timing them, so that runs repeat.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from afaf.engine.compact import Trunk, gather, scatter
from afaf.engine.loop import learn_epochs
from afaf.engine.report import EpochReport, OnEpoch, check_finite
from afaf.engine.step import Workspace, take_step
from afaf.learning.feed import Feed, Moment
from afaf.learning.learner import Learner
from afaf.learning.plan import LearningPlan
from afaf.network.forward import Training
from afaf.randomness import keep_at

Precision = Literal["fp32", "tf32", "bf16"]
CHUNK_BYTES = 256 << 20  # of the epoch, laid out at once
WARM_UP = 3  # steps before a capture, on copies: libraries allocate what they need


class GraphedEngine:
    """Carries out learning plans with captured steps; on a CPU the same steps run uncaptured."""

    name = "graphed"

    def __init__(self, precision: Precision = "tf32", chunk_bytes: int = CHUNK_BYTES):
        self.precision, self.chunk_bytes = precision, chunk_bytes

    def learn(self, learner: Learner, plan: LearningPlan, feed: Feed, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None:
        """Learn from `first_epoch` to the plan's last, rewiring in between."""
        stage: Stage | None = None

        def learn_epoch(moment: Moment) -> EpochReport:
            nonlocal stage
            work, kept = gather(learner, plan)
            if stage is None or not stage.take_over(work):
                stage = Stage(work, feed, self.chunk_bytes, self.precision)
            report = stage.epoch(moment)
            scatter(stage.work, kept, learner)
            return report

        with precision(self.precision, learner.network.device):
            learn_epochs(learner, plan, on_epoch, first_epoch, learn_epoch)


@contextlib.contextmanager
def precision(name: Precision, device: torch.device) -> Iterator[None]:
    """Which products may be rounded: none, those of matrices and convolutions to 19 bits (tf32), or to 16 (bf16, by autocast)."""
    if device.type != "cuda":
        yield
        return
    flags: list[tuple[Any, str, bool]] = [
        (torch.backends.cuda.matmul, "allow_tf32", name != "fp32"),
        (torch.backends.cudnn, "allow_tf32", name != "fp32"),
        (torch.backends.cudnn, "benchmark", False),
        (torch.backends.cudnn, "deterministic", True),
    ]
    before = [getattr(where, flag) for where, flag, _ in flags]
    try:
        for where, flag, value in flags:
            setattr(where, flag, value)
        yield
    finally:
        for (where, flag, _), value in zip(flags, before, strict=True):
            setattr(where, flag, value)


@dataclass
class Drawn(Training):
    """Training in which dropout was drawn ahead: for each layer, what to multiply with."""

    factors: dict[int, Tensor] = field(default_factory=dict)

    def dropout(self, layer: int, h: Tensor) -> Tensor:
        return h * self.factors[layer].unflatten(2, h.shape[2:] or (1,)).reshape(h.shape) if layer in self.factors else h


class Stage:
    """The fixed tensors of one task, and the graph of a step on them."""

    def __init__(self, work: Workspace, feed: Feed, chunk_bytes: int, precision: Precision):
        self.work, self.feed, self.precision = work, feed, precision
        self.trunk = Trunk(work, feed, chunk_bytes, 0)
        self.device = feed.device
        self.dropped = [
            l + 1 for l in range(work.entry, work.spec.L - 1) if "dropout" in work.spec.connections(l).then and work.spec.dropout
        ]
        self.chunk_size = self.trunk.chunk(work, sum(len(self._neurons(l)) * self._positions(l) for l in self.dropped))
        self.columns = torch.arange(work.spec.n_classes, device=self.device)
        if work.plan.outputs is not None:
            self.columns = torch.tensor(work.plan.outputs, device=self.device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.right = torch.zeros((), dtype=torch.int64, device=self.device)
        self.losses = torch.zeros(-(-len(feed) // work.plan.batch_size), device=self.device, dtype=work.parameters.weights[-1].dtype)
        self.step_number = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.chunk: Chunk | None = None
        self.replays: dict[int, Callable[[], None]] = {}

    def take_over(self, work: Workspace) -> bool:
        """Go on with a part gathered anew after rewiring, in the same memory; False if it has another shape."""
        ours, theirs = _tensors(self.work), _tensors(work)
        same = len(ours) == len(theirs) and all(a.shape == b.shape for a, b in zip(ours, theirs, strict=True))
        if not same or not self.trunk.serves(work):
            return False
        for mine, new in zip(ours, theirs, strict=True):
            mine.copy_(new)
        return True

    def epoch(self, moment: Moment) -> EpochReport:
        plan = self.work.plan
        self.right.zero_()
        self.step_number.zero_()
        sizes = []
        for samples in self.feed.order(moment).split(self.chunk_size):
            self._lay_out(samples, moment)
            for part in samples.split(plan.batch_size):
                self._replay(len(part))
                sizes.append(len(part))
        check_finite(self.losses, plan, moment.epoch)
        weights = torch.tensor(sizes, dtype=torch.float64)
        loss = float((self.losses.double().cpu() * weights).sum()) / len(self.feed)
        return EpochReport(plan.task, plan.phase, moment.epoch, plan.epochs, loss, 100 * int(self.right) / len(self.feed))

    def _lay_out(self, samples: Tensor, moment: Moment) -> None:
        """What the steps of a chunk read, in the order of the steps, in the memory the graph knows."""
        with self._autocast():
            chunk = Chunk(
                self.trunk.features(self.work, samples, moment),
                self.feed.labels[samples],
                {l: self._dropout_factors(l, samples, moment) for l in self.dropped},
            )
        if self.chunk is None:
            self.chunk = chunk
        else:
            self.chunk.fill(chunk)
        self.cursor.zero_()

    def _autocast(self) -> torch.autocast:
        on = self.precision == "bf16" and self.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16, enabled=on, cache_enabled=False)

    def _dropout_factors(self, layer: int, samples: Tensor, moment: Moment) -> Tensor:
        rate = self.work.spec.dropout
        kept = keep_at(moment.key("dropout", layer), rate, samples.to(torch.int32), self._neurons(layer), self._positions(layer))
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cuda") else self.work.parameters.weights[-1].dtype
        factors = kept.to(dtype).mul_(1 / (1 - rate))
        return factors.transpose(1, 2).contiguous().transpose(1, 2)  # channels last, as the activations they are multiplied with

    def _neurons(self, layer: int) -> Tensor:
        return self.work.neurons.get(layer, torch.arange(self.work.spec.layer(layer).size, device=self.device))

    def _positions(self, layer: int) -> int:
        """Values of a neuron where its dropout sits: before or after the pool."""
        join = self.work.spec.connections(layer - 1)
        before_pool = "pool" in join.then and join.then.index("dropout") < join.then.index("pool")
        return join.positions if before_pool else self.work.spec.layer(layer).positions

    def _replay(self, size: int) -> None:
        if size not in self.replays:
            self.replays[size] = self._capture(size) if self.device.type == "cuda" else lambda: self._step(size)
        self.replays[size]()

    def _capture(self, size: int) -> Callable[[], None]:
        """The graph of a step of this size; warming up and capturing leave no trace in the numbers."""
        state = [*_tensors(self.work), self.cursor, self.right, self.losses, self.step_number]
        saved = [tensor.clone() for tensor in state]
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.cursor.zero_()
                self.step_number.zero_()
                self._step(size)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(size)
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
        return graph.replay

    def _step(self, size: int) -> None:
        assert self.chunk is not None
        place = self.cursor + torch.arange(size, device=self.device)
        h, labels = self.chunk.features.index_select(0, place), self.chunk.labels.index_select(0, place)
        factors = {l: factor.transpose(1, 2).index_select(0, place).transpose(1, 2) for l, factor in self.chunk.factors.items()}
        work = self.work
        mode = Drawn(work.spec.dropout, {}, place, work.passes, work.plan.norm_moves, work.neurons, factors)
        with self._autocast():
            loss, logits = take_step(work, h, labels, mode)
        self.losses.index_copy_(0, self.step_number, loss.reshape(1).to(self.losses.dtype))
        self.right += (self.columns[logits.index_select(1, self.columns).argmax(1)] == labels).sum()
        self.cursor += size
        self.step_number += 1


@dataclass
class Chunk:
    """A chunk of an epoch, in the order of the steps."""

    features: Tensor
    labels: Tensor
    factors: dict[int, Tensor]

    def fill(self, other: Chunk) -> None:
        """Take another chunk's numbers into this one's memory; the last of an epoch may be shorter."""
        n = len(other.labels)
        self.features[:n].copy_(other.features)
        self.labels[:n].copy_(other.labels)
        for l, factor in other.factors.items():
            self.factors[l][:n].copy_(factor)


def _tensors(work: Workspace) -> list[Tensor]:
    """Everything of a workspace that rewiring or a step may change."""
    norms = [tensor for norm in work.parameters.norms.values() for tensor in norm.tensors().values()]
    return [
        *work.parameters.weights,
        *work.parameters.biases,
        *norms,
        *work.importance.connections,
        *work.importance.neurons,
        *work.moving.values(),
    ]
