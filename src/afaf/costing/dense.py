"""Costs of methods that train the whole network in every task."""

from __future__ import annotations

from afaf.costing.footprint import CostModel, Footprint, samples_of
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline


class DenseCosts(CostModel):
    """Every task changes all weights, and the output rows in its loss."""

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        prints, classes = [], 0
        for tasks in self.task_groups(len(outline)):
            new = sum(outline.classes_per_task[task - 1] for task in tasks)
            classes += new
            whole = {l: edge.weights for l, edge in enumerate(spec.edges, 1)}
            row = spec.edges[-1].fan_in
            live = {**whole, spec.E: classes * row}
            moving = {**whole, spec.E: (new if self.options.loss_over == "task" else classes) * row}
            prints.append(Footprint(samples_of(outline, tasks), self.settings.learn.epochs, live, moving, live))
        return prints
