"""Costs of PackNet: dense training on the free weights, then retraining of the kept share."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from afaf.costing.footprint import CostModel, Footprint, ledger_bytes, samples_of
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.subnets.sizes import share


class PackNetCosts(CostModel):
    """Every task has two footprints: training, and retraining after pruning."""

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        prints, classes, taken = [], 0, dict.fromkeys(range(1, spec.E), 0)
        row, epochs = spec.edges[-1].fan_in, self.settings.learn.epochs
        for task, new in enumerate(outline.classes_per_task, 1):
            samples, classes = samples_of(outline, (task,)), classes + new
            output, own_rows = {spec.E: classes * row}, {spec.E: new * row}
            whole = {l: spec.edge(l).weights for l in taken}
            kept = {l: self._kept_weights(weights, task) for l, weights in whole.items()}
            free = {l: weights - taken[l] for l, weights in whole.items()}
            taken = {l: taken[l] + kept[l] for l in taken}
            retrain = 0 if self._completes(task) else self.options.retrain_epochs
            prints.append(Footprint(samples, epochs, whole | output, free | own_rows, whole | output))
            prints.append(Footprint(samples, retrain, taken | output, kept | own_rows, taken | output))
        return prints

    def paper_flops(self, dense_flops: float, dense_params: int, footprints: Sequence[Footprint]) -> float:
        """As printed: the sum over tasks of f_D d_t + f_t^tune, with d_t the density of what is trained and f_D the *whole sequence's*."""
        training, tuning = self._paper_terms(dense_params, footprints)
        return dense_flops * (sum(density for density, _ in training) + tuning)

    def paper_flops_by_task(self, dense_flops: float, dense_params: int, footprints: Sequence[Footprint]) -> float:
        """With the f_D of each task's own samples, which is what training it costs by the same reckoning."""
        training, tuning = self._paper_terms(dense_params, footprints)
        return dense_flops * (sum(density * part for density, part in training) + tuning)

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        return {"masks": ledger_bytes(spec, self.unit)["owners"]}

    def _paper_terms(self, dense_params: int, footprints: Sequence[Footprint]) -> tuple[list[tuple[float, float]], float]:
        """For each task d_t and its part of all samples; and the sum of f_t^tune / f_D, which is of the task's own samples."""
        train, retrain = footprints[0::2], footprints[1::2]
        samples = sum(f.samples for f in train)
        owned = [0, *(f.params for f in retrain[:-1])]
        training = [(1 - before / dense_params, f.samples / samples) for f, before in zip(train, owned, strict=True)]
        return training, sum(f.samples * f.epochs * sum(f.moving.values()) for f in retrain) / (samples * train[0].epochs * dense_params)

    def _completes(self, task: int) -> bool:
        """Whether the shares of the tasks up to this one make up the whole layer: then the task keeps what is left, and prunes nothing."""
        return Fraction(str(self.options.share)) * task >= 100

    def _kept_weights(self, weights: int, task: int) -> int:
        each = share(self.options.share, weights)
        return weights - (task - 1) * each if self._completes(task) else each
