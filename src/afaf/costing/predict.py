"""Costs, known without training: parameters and floating-point operations, by the paper's formulas and counted exactly."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from afaf.costing.footprint import CostModel, Footprint, small_bytes
from afaf.network.spec import Edge, NetworkSpec
from afaf.streams.tasks import Outline


@dataclass(frozen=True)
class Costs:
    """`params`: weights owned after the last task, biases not counted. FLOPs: of training on the whole stream, and of one answer.

    `paper_flops` is the paper's estimate, `paper_flops_by_task` the same with each task charged for its own samples only (they differ for
    PackNet); None where the paper has no formula. `counted_flops` counts, phase by phase, only live connections, and backward passes only
    where something learns. `kept` is bytes kept between tasks besides the model, `small_bytes` those of its biases and norms.
    """

    stream: str
    method: str
    params: int
    dense_params: int
    params_ratio: float
    dense_flops: float
    paper_flops: float | None
    paper_flops_ratio: float | None
    paper_flops_by_task: float | None
    paper_flops_by_task_ratio: float | None
    counted_flops: float
    counted_flops_ratio: float
    inference_flops: int
    inference_flops_ratio: float
    kept_bytes: int
    kept: dict[str, int]
    small_bytes: int

    @property
    def model_bytes(self) -> int:
        """Bytes of weights, biases, norms and everything else kept; for a method with sub-networks, everything in its model file."""
        return 4 * self.params + self.small_bytes + self.kept_bytes

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def predict_costs(spec: NetworkSpec, outline: Outline, method: CostModel) -> Costs:
    """The costs of a method on a stream; `spec` has the output rows of the whole stream."""
    footprints = method.footprints(spec, outline)
    dense = dense_training_flops(spec, sum(outline.train_counts), method.settings.learn.epochs)
    paper = method.paper_flops(dense, spec.dense_params, footprints)
    by_task = method.paper_flops_by_task(dense, spec.dense_params, footprints)
    counted = float(sum(counted_training_flops(spec, footprint) for footprint in footprints))
    inference = method.inference_flops(spec, outline)
    kept = {name: size for name, size in method.kept(spec, outline).items() if size > 0}
    return Costs(
        stream=outline.name,
        method=method.name,
        params=footprints[-1].params,
        dense_params=spec.dense_params,
        params_ratio=footprints[-1].params / spec.dense_params,
        dense_flops=dense,
        paper_flops=paper,
        paper_flops_ratio=None if paper is None else paper / dense,
        paper_flops_by_task=by_task,
        paper_flops_by_task_ratio=None if by_task is None else by_task / dense,
        counted_flops=counted,
        counted_flops_ratio=counted / dense,
        inference_flops=inference,
        inference_flops_ratio=inference / (2 * spec.dense_products),
        kept_bytes=sum(kept.values()),
        kept=kept,
        small_bytes=small_bytes(spec),
    )


def forward_flops(edge: Edge) -> int:
    """The paper's count for a dense layer: each output sums fan-in products, outputs x (2 fan-in - 1)."""
    return edge.outputs * edge.positions * (2 * edge.fan_in - 1)


def dense_training_flops(spec: NetworkSpec, samples: int, epochs: int) -> float:
    """f_D: three forward passes' worth (forward, gradient of the inputs, gradient of the weights) for every sample and epoch."""
    return float(3 * sum(forward_flops(edge) for edge in spec.edges) * samples * epochs)


def counted_training_flops(spec: NetworkSpec, footprint: Footprint) -> int:
    """Multiplications and additions over live connections: forward everywhere, gradients of weights where they learn, and gradients
    of neurons only where something before them learns."""
    learning = spec.reached_from({spec.edge(l).target for l in footprint.moving})
    per_sample = 0
    for l, edge in enumerate(spec.edges, 1):
        per_sample += 2 * edge.positions * footprint.live[l]
        per_sample += 2 * edge.positions * footprint.moving.get(l, 0)
        if edge.source in learning:
            per_sample += 2 * edge.positions * footprint.live[l]
    return per_sample * footprint.samples * footprint.epochs + footprint.extra_flops
