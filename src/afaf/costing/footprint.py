"""The work of learning a stream, known without training: what a method uses, task by task, and what it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from afaf.errors import ConfigError
from afaf.network.ledger import Unit
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.training.settings import Settings


@dataclass(frozen=True)
class Footprint:
    """What one phase of one task computes with, known without training: weights by l of W_l."""

    samples: int
    epochs: int
    live: dict[int, int]  # weights a forward pass uses
    moving: dict[int, int]  # weights that learn
    owned: dict[int, int]  # weights owned afterwards
    extra_flops: int = 0  # besides the network's own: a teacher's answers, an estimate of importance, a head in closed form
    extra_params: int = 0  # weights outside the network that the model answers with afterwards

    @property
    def params(self) -> int:
        return sum(self.owned.values()) + self.extra_params


class CostModel:
    """The costs of a method. Those of each kind of method are a class beside this one, from which the method inherits."""

    name: ClassVar[str]
    options: Any
    settings: Settings

    @property
    def unit(self) -> Unit:
        """What the ledger's owners are kept for: connections, or single weights."""
        return "connection"

    def task_groups(self, n_tasks: int) -> list[tuple[int, ...]]:
        """Which tasks (numbered from 1) are learned together, in order."""
        return [(task,) for task in range(1, n_tasks + 1)]

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        """What learning the stream will use, task by task and phase by phase; a method that freezes or prunes says so here."""
        raise ConfigError(f"method '{self.name}' does not say what it will use: it has no footprints, so its costs are unknown")

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        """What is kept between tasks besides the weights, in bytes, after the last task: Fisher, old model, Gram, masks."""
        return {}

    def inference_flops(self, spec: NetworkSpec, outline: Outline) -> int:
        """Multiplications and additions of one answer, after the last task."""
        return forward_work(spec, self.footprints(spec, outline)[-1].owned)

    def paper_flops(self, dense_flops: float, dense_params: int, footprints: Sequence[Footprint]) -> float | None:
        """The paper's estimate for the whole sequence: (1 - s) f_D, with s the final sparsity. None where it has no formula."""
        return dense_flops * footprints[-1].params / dense_params

    def paper_flops_by_task(self, dense_flops: float, dense_params: int, footprints: Sequence[Footprint]) -> float | None:
        """The same with each task charged its own samples only; it differs where the printed formula charges every task for all."""
        return self.paper_flops(dense_flops, dense_params, footprints)


def samples_of(outline: Outline, tasks: tuple[int, ...]) -> int:
    return sum(outline.train_counts[task - 1] for task in tasks)


def forward_work(spec: NetworkSpec, live: Mapping[int, int]) -> int:
    """Multiplications and additions of a forward pass for one image, where `live` counts the weights of W_l."""
    return sum(2 * spec.edge(l).positions * count for l, count in live.items())


def ledger_bytes(spec: NetworkSpec, unit: Unit) -> dict[str, int]:
    """What the ledger takes: for every connection (or weight) its owner, for every neuron who fixed it."""
    places = sum(edge.weights if unit == "weight" else edge.inputs * edge.outputs for edge in spec.edges)
    return {"owners": 2 * places, "fixed neurons": 2 * sum(spec.layer(s).size for s in spec.streams)}
