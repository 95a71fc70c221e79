"""Costs of LwF: the teacher answers for every image, and is kept."""

from __future__ import annotations

from dataclasses import replace

from afaf.costing.footprint import CostModel, Footprint, forward_work
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline


class DistillationCosts(CostModel):
    """To be inherited before the method that it adds to."""

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        """From the second task on, the teacher answers for every image too."""
        first, *later = super().footprints(spec, outline)
        old = [first, *later]
        return [first] + [
            replace(new, extra_flops=forward_work(spec, before.owned) * new.samples * new.epochs)
            for before, new in zip(old[:-1], later, strict=True)
        ]

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        floats = sum(edge.weights + edge.outputs for edge in spec.edges)
        floats += sum(4 * spec.layer(layer).size for layer in spec.normed_layers)
        return {"old model": 4 * floats}
