"""Costs of EWC and MAS: one more epoch to estimate importance; importances and anchors are kept."""

from __future__ import annotations

from dataclasses import replace

from afaf.costing.footprint import CostModel, Footprint, forward_work
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline


class PenaltyCosts(CostModel):
    """To be inherited before the method that it adds to."""

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        """Estimating costs one more epoch; element-wise work, the penalty's as the step's, is not counted."""
        return [
            replace(footprint, extra_flops=3 * forward_work(spec, footprint.live) * footprint.samples)
            for footprint in super().footprints(spec, outline)
        ]

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        floats = sum(edge.weights + edge.outputs for edge in spec.edges[:-1])
        floats += sum(2 * spec.layer(layer).size for layer in spec.normed_layers)
        terms = len(self.task_groups(len(outline))) if self.options.blend == "separate" else 1
        return {"importance": 4 * floats * terms, "anchor": 4 * floats * terms}
