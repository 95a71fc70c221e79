"""The workspace of steps on CUDA for chains: fused kernels with the same results up to the chosen precision.

One kernel updates a weight, its compute weight, the optimiser's buffers and its importance.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from afaf.network.forward import Parameters, Training, forward
from afaf.network.ops import FusedKernel, fuse
from afaf.network.spec import NeuronLayer
from afaf.training.cuda.fused import Fused
from afaf.training.cuda.gradients import Backward, FusedCrossEntropy
from afaf.training.cuda.kernels import (
    LossBuffers,
    Move,
    WeightPenalty,
    can_crop,
    crops,
    learn,
    penalised_step,
    penalty_grad_norm,
    tile_of_logits,
    update,
    update_listed,
)
from afaf.training.cuda.streams import SideStream
from afaf.training.cuda.workspace import DeviceWorkspace
from afaf.training.folded_trunk import FoldedTrunk
from afaf.training.named import weight_number
from afaf.training.optimisers import SGD, buffers_of
from afaf.training.step import Workspace, clip_scale
from afaf.training.task_data import RngScope, TaskData

MOST_CLASSES, MOST_LOGITS = 128, 1 << 20  # limits of one tile of logits: classes, and logits of a batch
LONG, FEW = 16, 0.5  # connections of at least LONG weights are updated one by one if the task owns less than the share FEW


@dataclass
class MixedPrecisionWorkspace(DeviceWorkspace):
    """A workspace for chains, with our kernels."""

    history: dict[int, Tensor] = field(default_factory=dict)  # l of W_l -> sum over the epoch's steps of the connections' importance
    listed: dict[int, Tensor] = field(default_factory=dict)  # l of W_l -> indices of the task's connections, if only they are updated
    penalties: dict[int, WeightPenalty] = field(default_factory=dict)  # l of W_l -> the penalty on it, where kernels apply it
    energy: Tensor | None = None  # the value of these penalties in the current step's loss
    loss_buffers: LossBuffers | None = None  # if the loss is cross-entropy, and perhaps a penalty
    side_stream: SideStream | None = None
    all_move: dict[int, bool] = field(default_factory=dict)  # l of W_l -> whether the task owns all of it

    @classmethod
    def of(cls, work: Workspace, dtype: torch.dtype) -> MixedPrecisionWorkspace:
        """The same part of the network, laid out for the kernels."""
        device = work.parameters.weights[0].device
        whole = {l: torch.arange(work.spec.layer(l).size, device=device) for l in range(1, work.spec.L + 1)}
        here = cls(**{**vars(work), "neurons": {l: index.to(torch.int32) for l, index in (whole | work.neurons).items()}})
        here.lay_out()
        here.all_move = {l: bool(mask.all()) for l, mask in here.moving.items()}
        here._take_penalties()
        here.compute_weights = [w.to(dtype, copy=True) for w in here.parameters.weights]
        here.listed = {l: torch.nonzero(mask.flatten()).flatten() for l, mask in here.moving.items() if here._worth_listing(l, mask)}
        here.history = {l: torch.zeros_like(here.importance.connections[l - 1]) for l in here.moving}
        here.side_stream = SideStream(device) if device.type == "cuda" else None
        here.place_on_device(torch.float32)  # the type that the kernels read
        return here

    def _worth_listing(self, l: int, moving: Tensor) -> bool:
        """Whether the task owns few connections of many weights, and a step updates them with the gradient of their product alone."""
        edge, plan = self.spec.edge(l), self.plan
        long = not edge.product.maps and edge.block >= LONG and moving.shape[2] == 1
        same_number = plan.rewire is None or plan.rewire_repeats
        alone = plan.cross_entropy_over is not None and plan.loss_penalty is None
        return long and same_number and alone and self.updates_at_once and bool(0 < moving.mean() < FEW)

    @property
    def updates_at_once(self) -> bool:
        """Whether a parameter can be updated as soon as its gradient is known: plain SGD, and no norm of the whole gradient is needed."""
        return self.plan.optimiser.plain and self.plan.clip is None

    def _take_penalties(self) -> None:
        """Let the update kernels apply the penalty on each W_l that may move as a whole; the rest of it stays in the plan."""
        plan = self.plan
        if plan.penalty is None or plan.clip is None or plan.importance or not plan.optimiser.plain:
            return
        for name, importance in plan.penalty.importance.items():
            l = weight_number(name)
            if l is not None and self.all_move.get(l):
                self.penalties[l] = WeightPenalty(plan.penalty.strength, importance, plan.penalty.anchor[name], plan.penalty.proximal)
        taken = {f"weight/{l}" for l in self.penalties}
        self.plan = replace(plan, penalty=plan.penalty.only(lambda name: name not in taken))

    def use_fused_loss(self, step: Tensor, losses: Tensor, right: Tensor) -> None:
        """If the plan's loss is cross-entropy, compute it in one kernel, which stores losses and right answers by step."""
        plan, rows, device = self.plan, self.spec.n_classes, losses.device
        over, penalty = plan.cross_entropy_over, plan.loss_penalty
        if over is None or over != plan.outputs or rows > MOST_CLASSES or tile_of_logits(plan.batch_size, rows) > MOST_LOGITS:
            return
        if penalty is not None and (plan.clip is None or penalty.on_weights):
            return
        kept = torch.arange(rows, device=device) if self.rows is None else self.rows
        place = torch.full((rows,), -1, dtype=torch.int32, device=device)
        place[kept] = torch.arange(len(kept), dtype=torch.int32, device=device)
        counted = torch.zeros(rows, dtype=torch.int32, device=device)
        counted[list(over)] = 1
        output_biases = self.parameters.biases[-1] if self.output_biases is None else self.output_biases
        moving = self.biases.get(self.spec.E) if self.updates_at_once else None
        self.loss_buffers = LossBuffers(place, counted, output_biases, step, losses, right, moving, self.current[:1])

    def take_step(self, h: Tensor, labels: Tensor, mode: Training) -> tuple[Tensor, Tensor] | None:
        buffers = self.loss_buffers
        if buffers is None or not isinstance(mode, Fused):
            found = super().take_step(h, labels, mode)
            return found if found is None or self.energy is None else (found[0] + self.energy, found[1])
        leaves = self.leaves()
        way = None if self.side_stream is None else self._backward(self.side_stream)
        mode = replace(mode, without_bias=self.spec.L, backward=way)
        z = forward(self.spec, self.masked(self.as_read(leaves)), h, mode=mode, start=self.entry)
        loss: Tensor = FusedCrossEntropy.apply(z, leaves.biases[-1], labels, buffers)  # type: ignore[no-untyped-call]
        loss.backward(loss.detach())  # its value is in the buffers, and the gradient that is passed is not read
        if self.side_stream is not None:
            self.side_stream.join()
        penalty = None if self.plan.loss_penalty is None else self.plan.loss_penalty(leaves)
        if penalty is not None:
            penalty.backward()
        self.update(leaves)
        for more in (penalty, self.energy):
            if more is not None:
                buffers.losses.index_add_(0, buffers.step, more.detach().reshape(1))
        return None

    def _backward(self, side_stream: SideStream) -> Backward | None:
        """The parameters to update before the whole gradient is known; with masked rows, the output's compute weights are not the leaf."""
        if not self.updates_at_once:
            return None
        masked = self.plan.masked_outputs is not None and self.rows is None
        weights = frozenset(l for l in self.moving if l < self.spec.E or not masked)
        return Backward(side_stream, self, weights, frozenset(l for l in self.biases if l < self.spec.E))

    def refresh(self) -> None:
        """Copy the weights to the compute weights and list the task's connections anew, in the same memory: their number is constant."""
        super().refresh()
        self._refresh_compute_weights()
        for l, listed in self.listed.items():
            order = torch.sort(self.moving[l].flatten(), descending=True, stable=True).indices
            listed.copy_(order[: len(listed)])

    def changing(self) -> list[Tensor]:
        return [*super().changing(), *self.compute_weights, *self.history.values()]

    def _refresh_compute_weights(self) -> None:
        """Weights that are not trained are not written: a trunk may be reading them."""
        for l in self.moving:
            self.compute_weights[l - 1].copy_(self.parameters.weights[l - 1])

    @property
    def value_bytes(self) -> int:
        return self.compute_weights[-1].element_size()

    def images(self, data: TaskData, samples: Tensor, scope: RngScope) -> Tensor:
        return crops(data, samples, scope, self.compute_weights[0].dtype) if can_crop(data) else super().images(data, samples, scope)

    def mode_now(self, samples: Tensor) -> Fused:
        return self._mode(self.keys, samples)

    def mode(self, scope: RngScope, samples: Tensor) -> Fused:
        return self._mode(self._keys_of(scope), samples)

    def folded_trunk(self) -> FoldedTrunk:
        """The trunk unfolded: the kernels need all of it, in the layout of the compute weights."""
        return FoldedTrunk(self.as_read(self.parameters), self.neurons)

    def trunk_mode(self, scope: RngScope, samples: Tensor, neurons: dict[int, Tensor]) -> Training:
        return self.mode(scope, samples)

    def _mode(self, keys: Tensor, samples: Tensor) -> Fused:
        by_layer = dict(enumerate(keys))
        maps = [l for l in range(2, self.spec.L) if self.spec.layer(l).positions > 1]
        dense = frozenset(l for l in maps if not self.spec.edge(l).product.maps)
        return Fused(
            by_layer,
            samples.to(torch.int32),
            self.grad_mask,
            self.plan.norm_moves,
            self.neurons,
            self.norm_neurons,
            seen_by_dense=dense,
            positive=frozenset(number for number, layer in enumerate(self.spec.layers, 1) if _is_positive(layer)),
        )

    def as_read(self, leaves: Parameters) -> Parameters:
        return Parameters(self._compute_leaves(), leaves.biases, leaves.norms)

    @torch.no_grad()
    def update(self, leaves: Parameters) -> None:
        of_weights = self._gradients(leaves)
        scale = self._clip(leaves, of_weights)
        small = [(name, tensor, tensor.grad, mask) for name, tensor, mask in self.small_moves(leaves) if tensor.grad is not None]
        for l, (gradient, more) in of_weights.items():
            self.move(l, gradient, more, scale)
        if isinstance(self.plan.optimiser, SGD) and scale is None:
            self._update_together(self.plan.optimiser, [], [(name, tensor, mask) for name, tensor, _, mask in small])
        else:
            for name, tensor, gradient, mask in small:
                masked = gradient * mask
                self.optimise(name, tensor, masked if scale is None else masked.mul_(scale), mask)
        self.after_update()
        if self.plan.after_step is not None or (
            self.plan.penalty is not None and self.plan.penalty.proximal and self.plan.penalty.on_weights
        ):
            self._refresh_compute_weights()

    @torch.no_grad()
    def move(self, l: int, gradient: Tensor, more: Tensor | None = None, scale: Tensor | None = None) -> None:
        """Update W_l, its compute weights and its importance; `more` is the gradient of loss terms on the weights themselves."""
        weight, compute_weight, lr = self.parameters.weights[l - 1], self.compute_weights[l - 1], self.current
        if l in self.penalties and scale is not None:
            penalised_step(weight, compute_weight, gradient, self.penalties[l], lr, scale)
        elif l in self.listed and more is None and scale is None:
            update_listed(self.listed[l], weight, compute_weight, gradient, lr, self._importance(l))
        else:
            optimiser = self.plan.optimiser
            buffers = buffers_of(self.buffers, optimiser, f"weight/{l}")
            update(weight, compute_weight, gradient, more, self.moving[l], lr, scale, self._importance(l), optimiser, buffers)

    def _importance(self, l: int) -> tuple[Tensor, Tensor] | None:
        return (self.importance.connections[l - 1], self.history[l]) if self.plan.importance else None

    @torch.no_grad()
    def learn(self, l: int, above: Tensor, h: Tensor) -> None:
        """Like `move`, but the kernel computes the gradient, too. Only where a connection has one weight."""
        learn(above, h, self.parameters.weights[l - 1], self.compute_weights[l - 1], self.moving[l], self.current, self._importance(l))

    def move_of(self, l: int) -> Move:
        return Move(self.parameters.biases[l - 1], self.biases[l], self.current)

    def _gradients(self, leaves: Parameters) -> dict[int, tuple[Tensor, Tensor | None]]:
        """By l of W_l: the gradient of the compute weights, and that of loss terms on the weights themselves, if any."""
        found: dict[int, tuple[Tensor, Tensor | None]] = {}
        for l in self.moving:
            gradient, more = self.read[l - 1].grad, leaves.weights[l - 1].grad
            if gradient is not None:
                found[l] = (gradient.float() + more, None) if more is not None and l in self.penalties else (gradient, more)
        return found

    def _clip(self, leaves: Parameters, of_weights: dict[int, tuple[Tensor, Tensor | None]]) -> Tensor | None:
        """The factor that limits the norm of the gradient of all moving parameters to the plan's `clip`."""
        if self.plan.clip is None:
            return None
        norms = [(tensor.grad * mask).norm() for _, tensor, mask in self.small_moves(leaves) if tensor.grad is not None]
        energies = []
        for l, (gradient, more) in of_weights.items():
            if self.all_move[l] and more is None:
                square, energy = penalty_grad_norm(gradient, self.parameters.weights[l - 1], self.penalties.get(l))
                norms.append(square.sqrt())
                energies.append(energy)
            else:
                norms.append(((gradient) * self.moving[l]).norm())
        self.energy = torch.stack(energies).sum() if any(not penalty.proximal for penalty in self.penalties.values()) else None
        return clip_scale(norms, self.plan.clip)

    def flush_importance(self, steps: int) -> None:
        """At the end of an epoch, add to each neuron's importance the history of its outgoing connections.

        Connections that are not listed have no history: their importance, if any, was the same at every step.
        """
        for l, history in self.history.items():
            if l in self.listed and self.plan.importance:
                history += steps * self.importance.connections[l - 1] * (1 - self.moving[l])
            self.importance.neurons[self.spec.edge(l).source_group] += history.sum(dim=(0, 2))
            history.zero_()


def _is_positive(layer: NeuronLayer) -> bool:
    """Whether one kernel applies the layer's ReLU and other operations follow; a second ReLU there changes nothing."""
    kernel, _ = fuse(layer.ops, FusedKernel())
    return kernel.relu and (kernel.norm or kernel.dropout > 0)
