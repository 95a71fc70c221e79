"""The costs of each kind of method, known without training. A method inherits from its class here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import prod

from afaf.costing.footprint import CostModel, Footprint, forward_work, owner_bytes, samples_of, small_bytes
from afaf.heads.patches import feature_count
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.subnets.sizes import Sizes, share


class DenseCosts(CostModel):
    """The whole network is trained in every task: all weights, and the output rows in its loss."""

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


class SparseCosts(CostModel):
    """Weights are added task by task; below the first new layer nothing moves."""

    def first_new(self, spec: NetworkSpec, task: int) -> int:
        """The first W_l that gets new connections in this task."""
        return 1

    def reuses(self, task: int) -> bool:
        """Whether the task also draws on neurons of earlier tasks."""
        return False

    def sizes_of(self, spec: NetworkSpec, task: int, n_classes: int) -> Sizes:
        """The size of the sub-network of a task with this many classes."""
        raise NotImplementedError

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        prints = []
        owned = dict.fromkeys(spec.edge_numbers, 0)
        for task, n_classes in enumerate(outline.classes_per_task, 1):
            first = self.first_new(spec, task)
            asked = self.sizes_of(spec, task, n_classes).connections
            whole = not self.reuses(task)  # with reuse the connections are drawn class by class, each class an equal whole number
            new = {l: asked[l] if whole else asked[l] // n_classes * n_classes for l in range(first, spec.E + 1)}
            moving = {l: count * spec.edge(l).block for l, count in new.items()}
            owned = {l: count + moving.get(l, 0) for l, count in owned.items()}
            prints.append(Footprint(samples_of(outline, (task,)), self.settings.learn.epochs, owned, moving, owned))
        return prints

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        tasks = list(enumerate(outline.classes_per_task, 1))
        stored = [l for l in spec.edge_numbers if not all(self._owns_all_pairs(spec, l, *task) for task in tasks)]
        kept = {
            "owners": owner_bytes(spec, self.unit, stored),
            "fixed neurons": 2 * sum(spec.layer(s).size for s in spec.groups),
            "records of allocations": sum(self._record_bytes(spec, *task) for task in tasks),
        }
        return kept if self.strict else kept | {"biases and norms after each task": len(outline) * small_bytes(spec)}

    def _owns_all_pairs(self, spec: NetworkSpec, l: int, task: int, n_classes: int) -> bool:
        """Whether a task owns all pairs of its neurons in W_l, so that its record implies the owners and a file need not hold them."""
        sizes, edge = self.sizes_of(spec, task, n_classes), spec.edge(l)
        return not self.reuses(task) and sizes.connections[l] == edge.pairs(sizes.alloc[edge.source_group], sizes.alloc[edge.target_group])

    def _record_bytes(self, spec: NetworkSpec, task: int, n_classes: int) -> int:
        """Four for each neuron that a task draws. With reuse an upper bound: each class also has candidates, sources and targets."""
        alloc, first = self.sizes_of(spec, task, n_classes).alloc, self.first_new(spec, task)
        drawn = sum(alloc[s] for s in spec.hidden_groups)
        if not self.reuses(task):
            return 4 * drawn
        ends = sum(alloc[edge.source_group] + alloc[edge.target_group] for edge in spec.edges[first - 1 :])
        return 4 * (drawn + n_classes * (drawn + ends))


class PackNetCosts(CostModel):
    """Every task has two footprints: dense training on the free weights, and retraining of the kept share after pruning."""

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
        """As printed: the sum over tasks of f_D d_t + f_t^tune, with d_t the density of trained weights, f_D of the *whole sequence*."""
        training, tuning = self._paper_terms(dense_params, footprints)
        return dense_flops * (sum(density for density, _ in training) + tuning)

    def paper_flops_by_task(self, dense_flops: float, dense_params: int, footprints: Sequence[Footprint]) -> float:
        """The same with the f_D of each task's own samples."""
        training, tuning = self._paper_terms(dense_params, footprints)
        return dense_flops * (sum(density * part for density, part in training) + tuning)

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        return {
            "masks": owner_bytes(spec, self.unit, spec.edge_numbers),
            "biases and norms after each task": len(outline) * small_bytes(spec),
        }

    def _paper_terms(self, dense_params: int, footprints: Sequence[Footprint]) -> tuple[list[tuple[float, float]], float]:
        """For each task d_t and its part of all samples; and the sum of f_t^tune / f_D, which counts the task's own samples."""
        train, retrain = footprints[0::2], footprints[1::2]
        samples = sum(f.samples for f in train)
        owned = [0, *(f.params for f in retrain[:-1])]
        training = [(1 - before / dense_params, f.samples / samples) for f, before in zip(train, owned, strict=True)]
        return training, sum(f.samples * f.epochs * sum(f.moving.values()) for f in retrain) / (samples * train[0].epochs * dense_params)

    def _completes(self, task: int) -> bool:
        """Whether the shares of the tasks up to this one make up the whole layer: then the task keeps the rest and prunes nothing."""
        return Fraction(str(self.options.share)) * task >= 100

    def _kept_weights(self, weights: int, task: int) -> int:
        each = share(self.options.share, weights)
        return weights - (task - 1) * each if self._completes(task) else each


class PenaltyCosts(CostModel):
    """EWC and MAS: one more epoch to estimate importance; importances and anchors are kept. Inherit it before the dense method."""

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        """Estimating importance costs one more epoch; element-wise work, of the penalty or the step, is not counted."""
        return [
            replace(footprint, extra_flops=3 * forward_work(spec, footprint.live) * footprint.samples)
            for footprint in super().footprints(spec, outline)
        ]

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        floats = sum(prod(edge.shape) + edge.outputs for edge in spec.edges[:-1])
        floats += sum(2 * spec.layer(layer).size for layer in spec.normed_layers)
        terms = len(self.task_groups(len(outline))) if self.options.blend == "separate" else 1
        return {"importance": 4 * floats * terms, "anchor": 4 * floats * terms}


class DistillationCosts(CostModel):
    """LwF: the old model answers for every image, and is kept. Inherit it before the dense method."""

    def footprints(self, spec: NetworkSpec, outline: Outline) -> list[Footprint]:
        """From the second task on, the old model answers for every image too."""
        prints = super().footprints(spec, outline)
        answering = (replace(new, extra_flops=forward_work(spec, old.owned) * new.samples * new.epochs) for old, new in pairwise(prints))
        return [prints[0], *answering]

    def kept(self, spec: NetworkSpec, outline: Outline) -> dict[str, int]:
        floats = sum(prod(edge.shape) + edge.outputs for edge in spec.edges)
        floats += sum(4 * spec.layer(layer).size for layer in spec.normed_layers)
        return {"old model": 4 * floats}


class RidgeCosts(CostModel):
    """A ridge head on fixed features. Inherit it before the dense method whose first task trains the features."""

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
        d, rows = self._count(spec), outline.n_classes
        return {"Gram matrix and sums": 8 * (d * d + d * rows + d + rows)}

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
