"""The fast engine for CUDA: steps of the compact network, captured once per task as CUDA graphs and replayed.

A graph is replayed on the same memory, so the gathered part of the network, its masks and importances live in fixed tensors for the whole
task. The inputs of the steps (images, or the trunk's output for them, and labels) are laid out for a chunk of the epoch in the order of the
steps; a cursor on the device points to the next batch. Dropout keys and the optimiser's coefficients are in device memory, too. Results are
those of the compact engine up to the precision chosen. Kernels are chosen without timing them, so that runs are reproducible.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from afaf.training.compact import (
    CACHE_BYTES,
    CHUNK_BYTES,
    Trunk,
    gather,
    neurons_last,
    neurons_second,
    neurons_that_matter,
    regather,
    scatter,
)
from afaf.training.cuda import kernels
from afaf.training.cuda.chain_workspace import MixedPrecisionWorkspace
from afaf.training.cuda.streams import CAPTURE_LOCK, stream_for
from afaf.training.cuda.workspace import DeviceWorkspace
from afaf.training.learner import Learner
from afaf.training.loop import learn_epochs
from afaf.training.optimisers import Coefficients
from afaf.training.plan import LearningPlan
from afaf.training.precision import Precision, at_work
from afaf.training.report import EpochReport, OnEpoch, check_finite, columns_in_loss, count_right
from afaf.training.step import Workspace, start_optimiser
from afaf.training.task_data import RngScope, TaskData

STEPS_AT_ONCE = 4  # in one graph: the device idles between graphs, but capturing a step takes longer than many replays


class GraphedEngine:
    """Carries out learning plans with captured steps; on a CPU the same steps run uncaptured."""

    name = "graphed"

    def __init__(self, precision: Precision = "tf32", chunk_bytes: int = CHUNK_BYTES, cache_bytes: int = CACHE_BYTES):
        self.precision: Precision = precision
        self.chunk_bytes, self.cache_bytes = chunk_bytes, cache_bytes

    def learn(self, learner: Learner, plan: LearningPlan, data: TaskData, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None:
        """Learn from `first_epoch` to the plan's last, rewiring in between."""
        data = data.with_views(plan.views)
        start_optimiser(learner, plan, first_epoch)
        kept = neurons_that_matter(learner, plan)
        with at_work(self.precision, learner.network.device):
            runner = GraphRunner(gather(learner, plan, kept), data, self)

            def end_epoch() -> None:
                runner.work.flush_importance(len(runner.losses))
                scatter(runner.work, kept, learner)

            def begin_epoch() -> None:
                regather(runner.work, learner, kept)
                runner.work.refresh()

            end, begin = CapturedCallable(end_epoch, data.device), CapturedCallable(begin_epoch, data.device)

            def learn_epoch(scope: RngScope, coefficients: Coefficients) -> EpochReport:
                if plan.changes_between_epochs and scope.epoch > first_epoch:
                    begin()
                report = runner.epoch(scope, coefficients)
                end()
                return report

            try:
                learn_epochs(learner, with_captured_rewire(plan, learner), data, on_epoch, first_epoch, learn_epoch)
            finally:
                runner.close()


def with_captured_rewire(plan: LearningPlan, learner: Learner) -> LearningPlan:
    """The plan, with rewiring captured as a graph if it is the same work after every epoch."""
    rewire = plan.rewire
    if rewire is None or not plan.rewire_repeats:
        return plan
    repeated = CapturedCallable(lambda: rewire(learner, 0), learner.network.device)
    return replace(plan, rewire=lambda _, __: repeated())


class GraphRunner:
    """The fixed tensors of one task, and the graphs of its steps on them."""

    def __init__(self, work: Workspace, data: TaskData, engine: GraphedEngine):
        self.data, self.device = data, data.device
        dtype = torch.bfloat16 if engine.precision == "bf16" else torch.float32
        self.work = _on_device(work, dtype)
        self.trunk = Trunk(self.work, data, engine.chunk_bytes, engine.cache_bytes)
        self.chunk_size = self.trunk.chunk(self.work)
        self.maps = work.entry > 1 and work.spec.read_as_maps(work.entry)  # whether the trunk's features are maps
        self.batch_size = work.plan.batch_size
        self.cursor = torch.zeros(2, dtype=torch.int64, device=self.device)  # images of the chunk and steps of the epoch done so far
        sizes = {self.batch_size, len(data) % self.batch_size}
        self.advance = {size: torch.tensor([size, 1], device=self.device) for size in sizes}
        steps = -(-len(data) // self.batch_size)
        self.losses = torch.zeros(steps, device=self.device, dtype=work.parameters.weights[-1].dtype)
        self.right = torch.zeros(steps, device=self.device, dtype=torch.int32)
        self.work.use_fused_loss(self.cursor[1:], self.losses, self.right)
        self.columns = columns_in_loss(work.plan, self.device)
        self.chunk: Chunk | None = None
        self.prefetcher = Prefetcher(self)
        self.tried: set[int] = set()
        self.replays: dict[tuple[int, int], Callable[[], None]] = {}

    def close(self) -> None:
        """Free the memory of graphs and chunks now: the garbage collector would do so only after the next task has begun."""
        self.replays.clear()
        self.prefetcher.close()  # drops its reference to the runner, so that all else is freed too, above all the features of a whole task
        self.chunk = None

    def epoch(self, scope: RngScope, coefficients: Coefficients) -> EpochReport:
        plan, n = self.work.plan, len(self.data)
        self.work.begin(scope, coefficients)
        self.cursor.zero_()
        first, last = 0, -(-n // self.chunk_size) - 1
        for number in range(first, last + 1):
            self._take(self.prefetcher.chunk(scope, number))
            self.prefetcher.mark()
            self._replay_all(min(n - number * self.chunk_size, self.chunk_size))
            if number < last:
                self.prefetcher.begin(scope, number + 1)
            elif scope.epoch + 1 < plan.epochs:
                self.prefetcher.begin(replace(scope, epoch=scope.epoch + 1), first)
        if self.device.type == "cuda":
            with CAPTURE_LOCK.released():
                torch.cuda.current_stream(self.device).synchronize()
        losses, right = self.losses.cpu(), self.right.cpu()
        check_finite(losses, plan, scope.epoch)
        sizes = torch.full((len(losses),), self.batch_size, dtype=torch.float64)
        sizes[-1] = n - self.batch_size * (len(losses) - 1)
        return EpochReport(plan.task, plan.phase, scope.epoch, plan.epochs, float(losses.double() @ sizes) / n, 100 * int(right.sum()) / n)

    def lay_out(self, scope: RngScope, number: int) -> Chunk:
        """The inputs of a chunk's steps, in the order of the steps. They do not depend on anything that learning changes."""
        samples = self.data.order(scope)[number * self.chunk_size : (number + 1) * self.chunk_size]
        features = self.trunk.features(self.work, samples, scope)
        features = neurons_last(features) if self.maps else features.flatten(1) if self.work.entry > 1 else features.contiguous()
        return Chunk(features, self.data.labels[samples], samples.to(torch.int32))

    def _take(self, chunk: Chunk) -> None:
        """Copy a chunk into the memory that the graphs read."""
        if self.chunk is None:
            self.chunk = chunk
        else:
            self.chunk.fill(chunk)
        self.cursor[0].zero_()

    def _replay_all(self, images: int) -> None:
        """Run all steps of a chunk, STEPS_AT_ONCE at a time while enough are left."""
        full, rest = divmod(images, self.batch_size)
        for steps in [STEPS_AT_ONCE] * (full // STEPS_AT_ONCE) + [1] * (full % STEPS_AT_ONCE):
            self._replay(self.batch_size, steps)
        if rest:
            self._replay(rest, 1)

    def _replay(self, size: int, steps: int) -> None:
        if self.device.type != "cuda":
            for _ in range(steps):
                self._step(size)
            return
        if (size, steps) not in self.replays:
            if size not in self.tried:
                with on_capturable_stream(self.device):
                    self._try(size)
            with CAPTURE_LOCK.exclusive():
                self.replays[size, steps] = self._capture(size, steps)
        self.replays[size, steps]()

    def _capture(self, size: int, steps: int) -> Callable[[], None]:
        """Capture this many steps of this batch size as a graph."""

        def some_steps() -> None:
            for _ in range(steps):
                self._step(size)

        return captured(some_steps, self.device)

    def _try(self, size: int) -> None:
        """Run a step before the first capture, so that libraries allocate what they need; its changes are undone."""
        state = [*self.work.changing(), self.cursor]
        saved = [tensor.clone() for tensor in state]
        self._step(size)
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
        self.tried.add(size)

    def _step(self, size: int) -> None:
        chunk, work = self.chunk, self.work
        assert chunk is not None
        work.select_step(self.cursor[1:])
        batch = chunk.batch(self.cursor, size)
        h, labels, samples = neurons_second(batch.features) if self.maps else batch.features, batch.labels, batch.samples
        found = work.take_step(h, labels, work.mode_now(samples))
        if found is not None:
            loss, logits = found
            self.losses.index_copy_(0, self.cursor[1:], loss.reshape(1).to(self.losses.dtype))
            self.right.index_copy_(0, self.cursor[1:], count_right(logits, labels, self.columns).reshape(1).to(self.right.dtype))
        self.cursor += self.advance[size]


def _on_device(work: Workspace, dtype: torch.dtype) -> Workspace:
    """The workspace with our kernels if the network is a chain, else with PyTorch's operations."""
    device = work.parameters.weights[0].device
    if kernels.available(device) and work.spec.is_chain:
        return MixedPrecisionWorkspace.of(work, dtype)
    return DeviceWorkspace.on_device(work, autocast=dtype == torch.bfloat16 and device.type == "cuda")


class CapturedCallable:
    """Work on fixed memory that is the same at every call: called directly the first time, replayed as a graph from the second on.

    In the first call libraries allocate what they need. On a CPU every call is direct.
    """

    def __init__(self, work: Callable[[], object], device: torch.device):
        self.work, self.device, self.tried = work, device, False
        self.replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self.device.type != "cuda" or not self.tried:
            self.work()
            self.tried = True
            return
        if self.replay is None:
            with CAPTURE_LOCK.exclusive():
                self.replay = captured(self.work, self.device)
        self.replay()


def captured(work: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Capture some work as a graph, without carrying it out.

    PyTorch cannot release the memory of deleted graphs during a capture, so it is released here if there is too little.
    """
    with contextlib.suppress(torch.OutOfMemoryError):
        return _captured(work, device)
    torch.cuda.empty_cache()
    return _captured(work, device)


def _captured(work: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Avoids `torch.cuda.graph`, which would wait for the whole device, other runs included, and release its unused memory."""
    graph = torch.cuda.CUDAGraph()
    with on_capturable_stream(device), no_garbage_collected():
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph.replay


@contextlib.contextmanager
def on_capturable_stream(device: torch.device) -> Iterator[None]:
    """The current stream, or another one if it is the default stream, on which nothing can be captured."""
    current = torch.cuda.current_stream(device)
    stream = stream_for("capture", device) if current == torch.cuda.default_stream(device) else current
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


@contextlib.contextmanager
def no_garbage_collected() -> Iterator[None]:
    """Disable garbage collection: freeing an old graph during a capture would break the capture."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Prefetcher:
    """On a GPU, lays out the next chunk on its own stream while the steps of the current one run."""

    def __init__(self, runner: GraphRunner):
        self.lay_out: Callable[[RngScope, int], Chunk] = runner.lay_out
        self.device = runner.device
        self.stream = stream_for("ahead", runner.device) if runner.device.type == "cuda" else None
        self.begun: tuple[RngScope, int, Chunk] | None = None

    def mark(self) -> None:
        """Allow the next chunk to be laid out from here on: the memory of the previous one is free again."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def begin(self, scope: RngScope, number: int) -> None:
        if self.stream is None:
            return
        with torch.cuda.stream(self.stream):
            self.begun = scope, number, self.lay_out(scope, number)

    def close(self) -> None:
        self.begun = None
        del self.lay_out

    def chunk(self, scope: RngScope, number: int) -> Chunk:
        """The requested chunk, whether it was begun or not."""
        if self.stream is None or self.begun is None or self.begun[:2] != (scope, number):
            return self.lay_out(scope, number)
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        chunk, self.begun = self.begun[2], None
        return chunk


@dataclass
class Chunk:
    """A chunk of an epoch, in the order of the steps."""

    features: Tensor
    labels: Tensor
    samples: Tensor

    def batch(self, cursor: Tensor, size: int) -> Chunk:
        """The next `size` images from the cursor on."""
        tensors = (self.features, self.labels, self.samples)
        if kernels.available(cursor.device):
            return Chunk(*kernels.fetch(cursor, size, *tensors))
        place = cursor[0] + torch.arange(size, device=cursor.device)
        return Chunk(*(tensor.index_select(0, place) for tensor in tensors))

    def fill(self, other: Chunk) -> None:
        """Copy another chunk into this one's memory; the last one of an epoch may be shorter."""
        n = len(other.labels)
        for mine, new in zip((self.features, self.labels, self.samples), (other.features, other.labels, other.samples), strict=True):
            mine[:n].copy_(new)
