"""The compact engine: a step computes with the neurons that matter to the task, in small dense tensors.

While a task is learned only two kinds of neuron matter: those selected for its sub-network, and the *cone* of neurons from which these
and the task's outputs can be reached through live connections of any task. They are gathered before an epoch, trained, and scattered
back after it, so that rewiring uses the ledger's own indices. Layers below l_reuse are constant: this *trunk* runs ahead of the steps in
its own batches; if images are not augmented it runs once for the whole task, up to its dropout.

Random draws are keyed by image and neuron, not by place in a tensor, so the results equal those of the eager engine up to the order of
floating-point sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from afaf.network.forward import Operations, Parameters, forward
from afaf.network.ledger import cone, live_beside, reached_back
from afaf.network.spec import Edge, NetworkSpec
from afaf.subnets.rewire import Importance
from afaf.training.folded_trunk import dead_neurons, round_to, rounded_up
from afaf.training.learner import Learner
from afaf.training.loop import learn_epochs
from afaf.training.optimisers import Coefficients
from afaf.training.plan import LearningPlan
from afaf.training.precision import PRECISION, Precision, cpu_autocast
from afaf.training.report import EpochReport, OnEpoch, Tally
from afaf.training.step import Workspace, feature_neurons, start_optimiser, take_step
from afaf.training.task_data import RngScope, TaskData

TRUNK_BATCH = 64  # on a CPU, so that a batch stays in its cache
TRUNK_BATCH_GPU = 2048
CHUNK_BYTES = 256 << 20  # features computed ahead of the steps
CACHE_BYTES = 4 << 30  # features of a whole task, if they are the same in every epoch


class CompactEngine:
    """Carries out learning plans on the part of the network that matters."""

    name = "compact"

    def __init__(self, precision: Precision = "fp32", chunk_bytes: int = CHUNK_BYTES, cache_bytes: int = CACHE_BYTES):
        self.precision: Precision = precision
        self.chunk_bytes, self.cache_bytes = chunk_bytes, cache_bytes

    def learn(self, learner: Learner, plan: LearningPlan, data: TaskData, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None:
        """Learn from `first_epoch` to the plan's last, rewiring in between."""
        with PRECISION.set(self.precision, learner.network.device):
            self._learn(learner, plan, data.with_views(plan.views), on_epoch, first_epoch)

    def _learn(self, learner: Learner, plan: LearningPlan, data: TaskData, on_epoch: OnEpoch | None, first_epoch: int) -> None:
        start_optimiser(learner, plan, first_epoch)
        kept = neurons_that_matter(learner, plan)
        work = gather(learner, plan, kept)
        trunk = Trunk(work, data, self.chunk_bytes, self.cache_bytes)

        def learn_epoch(scope: RngScope, coefficients: Coefficients) -> EpochReport:
            if plan.changes_between_epochs and scope.epoch > first_epoch:
                regather(work, learner, kept)
            tally = Tally(plan, scope.epoch)
            for (h, labels, samples), of_step in zip(trunk.batches(work, scope), coefficients, strict=True):
                work.coefficients = of_step
                with cpu_autocast(self.precision, h.device):
                    loss, logits = take_step(work, h, labels, work.mode(scope, samples))
                tally.add(loss, logits, labels)
            report = tally.report()
            scatter(work, kept, learner)
            return report

        learn_epochs(learner, plan, data, on_epoch, first_epoch, learn_epoch)


Kept = dict[int, Tensor]  # neuron layer -> indices of the gathered neurons, sorted; the same for all layers of a group


def neurons_that_matter(learner: Learner, plan: LearningPlan) -> Kept:
    """The task's cone, padded to a multiple of `round_to` with neurons that do not feed into it.

    Dead neurons at the trunk's top change no value and no gradient, so they are left out; except on a GPU, where captured steps need
    a constant number of connections.
    """
    spec, device, top = learner.network.spec, learner.network.device, trunk_top(learner, plan)
    if not plan.part_suffices:
        return {number: torch.arange(layer.size, device=device) for number, layer in enumerate(spec.layers, 1)}
    marked = _marked(learner, plan)
    found = cone(spec, learner.ledger, plan.task, marked)
    if spec.is_chain and device.type == "cpu" and not (plan.features and top == spec.L - 1):
        found[top] &= ~dead_neurons(spec, learner.network.parameters, top)
        live = [part if l < top else torch.zeros_like(part) for l, part in enumerate(live_beside(learner.ledger, plan.task), 1)]
        found = reached_back(spec, live, {s: found[s] if s >= top else marked[s] for s in spec.groups})
    by_group = {s: rounded_up(neurons, 1 if s == spec.L else round_to(spec, s, device)) for s, neurons in found.items()}
    return {number: by_group[layer.group] for number, layer in enumerate(spec.layers, 1)}


def _marked(learner: Learner, plan: LearningPlan) -> dict[int, Tensor]:
    """The neurons a plan needs besides the task's: the images, the output rows in use, and whole groups where all norms move."""
    spec = learner.network.spec
    whole = {1} | {spec.layer(layer).group for layer in spec.normed_layers if plan.needs_whole(layer)}
    marked = {s: torch.full((spec.layer(s).size,), s in whole, device=learner.network.device) for s in spec.groups}
    marked[spec.L] = torch.ones_like(marked[spec.L]) if plan.masked_outputs is None else ~plan.masked_outputs
    if (read := feature_neurons(learner, plan)) is not None:
        marked[spec.last_hidden][read] = True
    return marked


def trunk_top(learner: Learner, plan: LearningPlan) -> int:
    """The neuron layer up to which nothing trains: before W_l_reuse, or 1 (the images) if something below it trains."""
    spec = learner.network.spec
    first_layer = spec.edge(plan.first_trainable).target
    moving_norms = [layer for layer in learner.network.parameters.norms if plan.norm_changes(layer)]
    still = all(l >= plan.first_trainable for l in plan.biases) and all(layer >= first_layer for layer in moving_norms)
    return spec.cut_below(plan.first_trainable) if still else 1


def gather(learner: Learner, plan: LearningPlan, kept: Kept) -> Workspace:
    """The part of the network that matters, as small dense tensors."""
    whole = Workspace.whole(learner, plan)
    spec, importance = learner.network.spec, learner.importance
    all_rows = len(kept[spec.L]) == spec.n_classes
    return replace(
        whole,
        parameters=Parameters(
            [_part(weight, kept, edge) for weight, edge in zip(whole.parameters.weights, spec.edges, strict=True)],
            [bias[kept[edge.target]] for bias, edge in zip(whole.parameters.biases, spec.edges, strict=True)],
            {
                layer: norm if plan.norm_neurons is None and len(kept[layer]) == len(norm.gain) else norm.part(kept[layer])
                for layer, norm in whole.parameters.norms.items()
            },
        ),
        importance=Importance(
            [_part(connections, kept, edge) for connections, edge in zip(importance.connections, spec.edges, strict=True)],
            {s: neurons[kept[s]] for s, neurons in importance.neurons.items()},
        ),
        moving={l: _part(mask, kept, spec.edge(l)) for l, mask in whole.moving.items()},
        biases={l: mask[kept[spec.edge(l).target]] for l, mask in plan.biases.items()},
        norms={layer: mask[kept[layer]] for layer, mask in plan.norms.items()},
        norm_neurons=_by_batch(learner, plan, kept),
        grad_mask={l: part for l, mask in plan.grad_mask.items() if not bool((part := mask[kept[l]]).all())},
        entry=trunk_top(learner, plan) if plan.part_suffices else 1,
        neurons={l: index for l, index in kept.items() if len(index) < spec.layer(l).size},
        rows=None if all_rows else kept[spec.L],
        output_biases=None if all_rows else whole.parameters.biases[-1],
        features=None if whole.features is None else torch.searchsorted(kept[spec.L - 1], whole.features),
        buffers={name: _gathered(spec, name, tensor, kept) for name, tensor in whole.buffers.items()},
    )


def _by_batch(learner: Learner, plan: LearningPlan, kept: Kept) -> dict[int, Tensor | bool] | None:
    """Which of the kept neurons use the batch's statistics in a step; None if the plan does not restrict them.

    Padding neurons outside the cone may use them too: `scatter` does not change their statistics.
    """
    if plan.norm_neurons is None:
        return None
    spec, found = learner.network.spec, dict[int, Tensor | bool]()
    reached = cone(spec, learner.ledger, plan.task, _marked(learner, plan))
    for layer, moving in plan.norm_neurons.items():
        mask = (moving.bool() | ~reached[spec.layer(layer).group])[kept[layer]]
        found[layer] = True if bool(mask.all()) else mask.to(moving.dtype)
    return found


def _gathered(spec: NetworkSpec, name: str, buffer: Tensor, kept: Kept) -> Tensor:
    """The part of an optimiser's buffer that belongs to the kept neurons."""
    _, kind, number = name.split("/")
    if kind == "weight":
        return _part(buffer, kept, spec.edge(int(number)))
    return buffer[kept[_layer_of(spec, kind, int(number))]]


def _layer_of(spec: NetworkSpec, kind: str, number: int) -> int:
    """The layer whose neurons a bias (by l of W_l), a gain or a shift (by layer) belong to."""
    return spec.edge(number).target if kind == "bias" else number


def regather(work: Workspace, learner: Learner, kept: Kept) -> None:
    """Reload everything that can change between epochs, into the same memory."""
    for l in work.biases:
        work.parameters.biases[l - 1].copy_(learner.network.bias(l)[kept[work.spec.edge(l).target]])
    for layer, norm in learner.network.parameters.norms.items():
        part = work.parameters.norms[layer]
        if part is not norm:
            for mine, whole in zip(part.tensors().values(), norm.tensors().values(), strict=True):
                mine.copy_(whole[kept[layer]])
    for name, buffer in work.buffers.items():
        buffer.copy_(_gathered(work.spec, name, learner.optimiser_state[name], kept))
    for l in work.moving:
        edge = work.spec.edge(l)
        work.parameters.weights[l - 1].copy_(_part(learner.network.weight(l), kept, edge))
        work.importance.connections[l - 1].copy_(_part(learner.importance.connections[l - 1], kept, edge))
        work.moving[l].copy_(_part(learner.ledger.owned_by(l, work.plan.task), kept, edge))


def scatter(work: Workspace, kept: Kept, learner: Learner) -> None:
    """Write back everything that can have changed: weights and importances from l_reuse on, biases and norms that move."""
    network, importance = learner.network, learner.importance
    for l in work.moving:
        edge = work.spec.edge(l)
        _put(network.parameters.weights[l - 1], work.parameters.weights[l - 1], kept, edge)
        _put(importance.connections[l - 1], work.importance.connections[l - 1], kept, edge)
        importance.neurons[edge.source_group][kept[edge.source]] = work.importance.neurons[edge.source_group]
    for l in work.biases:
        network.parameters.biases[l - 1][kept[work.spec.edge(l).target]] = work.parameters.biases[l - 1]
    for layer, norm in network.parameters.norms.items():
        part = work.parameters.norms[layer]
        if part is not norm and work.plan.norm_changes(layer):
            own = None if work.plan.norm_neurons is None else work.plan.norm_neurons[layer][kept[layer]].bool()
            for whole, new in zip(norm.tensors().values(), part.tensors().values(), strict=True):
                whole[kept[layer]] = new if own is None else torch.where(own, new, whole[kept[layer]])
    for name, buffer in work.buffers.items():
        _, kind, number = name.split("/")
        if kind == "weight":
            _put(learner.optimiser_state[name], buffer, kept, work.spec.edge(int(number)))
        else:
            learner.optimiser_state[name][kept[_layer_of(work.spec, kind, int(number))]] = buffer


def _put(whole: Tensor, part: Tensor, kept: Kept, edge: Edge) -> None:
    if whole.shape == part.shape:
        whole.copy_(part)
    else:
        whole[kept[edge.target][:, None], edge.columns(kept[edge.source])[None, :]] = part


def _part(tensor: Tensor, kept: Kept, edge: Edge) -> Tensor:
    """The part of an edge's tensor (outputs, inputs, ...) that belongs to the kept neurons."""
    rows, columns = kept[edge.target], edge.columns(kept[edge.source])
    part = tensor if len(rows) == tensor.shape[0] else tensor.index_select(0, rows)
    part = part if len(columns) == tensor.shape[1] else part.index_select(1, columns)
    return part.clone() if part is tensor else part


class Trunk:
    """Runs the layers that do not train ahead of the steps, in large batches, with the crops, flips and dropout of the epoch."""

    def __init__(self, work: Workspace, data: TaskData, chunk_bytes: int, cache_bytes: int):
        self.data, self.chunk_bytes = data, chunk_bytes
        self.entry = work.entry
        self.batch_size = TRUNK_BATCH if data.device.type == "cpu" else TRUNK_BATCH_GPU
        self.folded = work.folded_trunk()
        self.cached: Tensor | None = None  # features of the whole task, up to the dropout that follows them
        if work.entry > 1 and not data.augments and self._random_only_at_the_top(work):
            everything = torch.arange(len(data), device=data.device)
            first = neurons_last(self._lower(work, everything[:1]))
            if first.numel() * first.element_size() * len(data) <= cache_bytes:
                self.cached = first.new_empty(len(data), *first.shape[1:])
                for place, part in zip(self.cached.split(self.batch_size), everything.split(self.batch_size), strict=True):
                    place.copy_(neurons_last(self._lower(work, part)))

    def batches(self, work: Workspace, scope: RngScope) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The epoch's batches: (features at the trunk's top, labels, numbers of the images)."""
        for chunk in self.data.order(scope).split(self.chunk(work)):
            features = self.features(work, chunk, scope)
            for start in range(0, len(chunk), work.plan.batch_size):
                steps = slice(start, start + work.plan.batch_size)
                yield features[steps], self.data.labels[chunk[steps]], chunk[steps]

    def features(self, work: Workspace, samples: Tensor, scope: RngScope) -> Tensor:
        """The output of the trunk for these images in this epoch; the images themselves if there is no trunk."""
        parts = samples.split(self.batch_size)
        if self.cached is not None:
            return torch.cat([self._upper(work, part, self.cached[part], scope) for part in parts])
        images = work.images(self.data, samples, scope)  # drawn at once: many small draws take longer
        if self.entry == 1:
            return images
        return torch.cat([self._through(work, *part, scope) for part in zip(parts, images.split(self.batch_size), strict=True)])

    def chunk(self, work: Workspace) -> int:
        """How many images are held at once: whole batches whose features, or images if these are larger, fit into the budget."""
        neurons, layer = work.neurons.get(self.entry), work.spec.layer(self.entry)
        values = max((layer.size if neurons is None else len(neurons)) * layer.positions, prod(work.spec.input_shape))
        per_batch = values * work.value_bytes * work.plan.batch_size
        return max(1, self.chunk_bytes // per_batch) * work.plan.batch_size

    @torch.no_grad()
    def _through(self, work: Workspace, samples: Tensor, images: Tensor, scope: RngScope) -> Tensor:
        mode = work.trunk_mode(scope, samples, self.folded.neurons)
        return self.folded.whole(forward(work.spec, self.folded.parameters, images, mode=mode, stop=self.entry))

    @torch.no_grad()
    def _upper(self, work: Workspace, samples: Tensor, features: Tensor, scope: RngScope) -> Tensor:
        """The trunk from the dropout at its top on."""
        _, upper = _around_random(work.spec.layer(self.entry).ops)
        mode = work.trunk_mode(scope, samples, self.folded.neurons)
        return self.folded.whole(mode.operate(upper, self.entry, neurons_second(features), self.folded.parameters.norms))

    @torch.no_grad()
    def _lower(self, work: Workspace, samples: Tensor) -> Tensor:
        """The trunk up to the dropout at its top, without it: the same in every epoch."""
        lower, _ = _around_random(work.spec.layer(self.entry).ops)
        mode = work.trunk_mode(RngScope(0, work.plan.task), samples, self.folded.neurons)
        images, parameters = self.data.batch(samples)[0], self.folded.parameters
        return forward(work.spec, parameters, images, mode=mode, stop=self.entry, last_operations=lower)

    def _random_only_at_the_top(self, work: Workspace) -> bool:
        return not any(operation.random for layer in work.spec.layers[: self.entry - 1] for operation in layer.ops)


def neurons_last(h: Tensor) -> Tensor:
    """(images, neurons, height, width) with the neurons last, in memory too: they stay last when images are selected."""
    return h.permute(0, 2, 3, 1).contiguous() if h.dim() == 4 else h


def neurons_second(h: Tensor) -> Tensor:
    return h.permute(0, 3, 1, 2) if h.dim() == 4 else h


def _around_random(operations: Operations) -> tuple[Operations, Operations]:
    """The operations before the first one that draws random numbers, and the rest."""
    place = next((i for i, operation in enumerate(operations) if operation.random), len(operations))
    return operations[:place], operations[place:]
