"""Costs of a ridge head on fixed features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from afaf.costing.footprint import CostModel, Footprint, forward_work
from afaf.heads.closed_form import sums_bytes
from afaf.heads.patches import feature_count
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline


class RidgeCosts(CostModel):
    """To be inherited before the dense method whose first task trains the features."""

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        """Besides training the trunk once: one pass for the features of every image, the sums, and an eigenvalue problem (9 d^3)."""
        d, network = self._count(spec), dict.fromkeys(spec.edge_numbers, 0)
        if self.options.features == "trunk":
            network |= {l: spec.edge(l).weights for l in range(1, spec.E)}
        prints, classes = [], 0
        for task, footprint in enumerate(super().footprints(spec, outline), 1):
            classes += outline.classes_per_task[task - 1]
            extra = footprint.samples * (self._feature_work(spec) + 2 * d * (d + 1)) + 9 * d**3
            params = d * classes + (self._filter_weights(spec) if self.options.features == "patches" else 0)
            epochs = footprint.epochs if self._trains(task) else 0
            prints.append(replace(footprint, epochs=epochs, owned=network, extra_flops=extra, extra_params=params))
        return prints

    def inference_flops(self, spec: NetworkSpec, outline: Outline) -> int:
        return self._feature_work(spec) + 2 * self._count(spec) * outline.n_classes

    def paper_flops(self, dense_flops: float, dense_params: int, footprints: Sequence[Footprint]) -> float | None:
        return None

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        return {"Gram matrix and sums": sums_bytes(self._count(spec), outline.n_classes)}

    def _trains(self, task: int) -> bool:
        return self.options.features == "trunk" and task == 1

    def _count(self, spec: NetworkSpec) -> int:
        return feature_count(self.options.filters) if self.options.features == "patches" else spec.edges[-1].fan_in

    def _filter_weights(self, spec: NetworkSpec) -> int:
        return int(self.options.filters * spec.input_shape[0] * self.options.patch**2)

    def _feature_work(self, spec: NetworkSpec) -> int:
        if self.options.features == "trunk":
            return forward_work(spec, {l: spec.edge(l).weights for l in range(1, spec.E)})
        height, width = (int(size - self.options.patch + 1) for size in spec.input_shape[1:])
        return 2 * height * width * self._filter_weights(spec)
