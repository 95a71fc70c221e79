"""The costs of learning a stream, known without training: the weights a method uses, task by task, and the bytes it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from afaf.errors import ConfigError
from afaf.network.ledger import Unit
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.training.settings import Settings


@dataclass(frozen=True)
class Footprint:
    """Weights that one phase of one task computes with, by l of W_l."""

    samples: int
    epochs: int
    live: dict[int, int]  # weights a forward pass uses
    moving: dict[int, int]  # weights that learn
    owned: dict[int, int]  # weights owned afterwards
    extra_flops: int = 0  # besides the network's own: a teacher's answers, an estimate of importance, a head in closed form
    extra_params: int = 0  # weights outside the network that the model uses afterwards

    @property
    def params(self) -> int:
        return sum(self.owned.values()) + self.extra_params


class CostModel:
    """The costs of a method. Each kind of method has a subclass in kinds.py, from which the method inherits."""

    name: ClassVar[str]
    options: Any
    settings: Settings

    @property
    def unit(self) -> Unit:
        """Whether the ledger records the owner of each connection or of each weight."""
        return "connection"

    @property
    def strict(self) -> bool:
        """Whether all neurons that a task uses are fixed with it, norms included: then its logits never change."""
        return False

    def task_groups(self, n_tasks: int) -> list[tuple[int, ...]]:
        """The tasks (numbered from 1) that are trained together, in order: one at a time, or all at once for joint training."""
        return [(task,) for task in range(1, n_tasks + 1)]

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        """The footprint of each task and phase; methods that freeze or prune override it."""
        raise ConfigError(f"method '{self.name}' has no footprints, so its costs are unknown")

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        """Bytes kept between tasks besides weights, biases and norms, after the last task, by name: Fisher, old model, Gram, masks."""
        return {}

    def inference_flops(self, spec: NetworkSpec, outline: Outline) -> int:
        """Multiplications and additions of one prediction, after the last task."""
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


def owner_bytes(spec: NetworkSpec, unit: Unit, stored: Iterable[int]) -> int:
    """Bytes of the owners of all connections (or weights) of these W_l."""
    return 2 * sum(prod(spec.edge(l).shape[: 3 if unit == "weight" else 2]) for l in stored)


def small_bytes(spec: NetworkSpec) -> int:
    """Bytes of the biases, and of the norms' gains, shifts, means and variances."""
    return 4 * sum(edge.outputs for edge in spec.edges) + 16 * sum(spec.layer(layer).size for layer in spec.normed_layers)
