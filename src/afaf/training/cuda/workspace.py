"""The workspace of steps on CUDA: the same as the plain ones, up to the precision chosen.

Beside each W_l lies its *shadow*: the same weights in the precision in which products read them fastest. A product reads the shadow, its
gradient is taken there, and one kernel then moves the weight, its shadow and its importance.

Weights are shaped (outputs, inputs, block) as everywhere. In memory those of a convolution lie as (outputs, block, inputs), the order in
which it reads maps; those of a dense layer as they are shaped, so that a connection's weights are next to each other and only the task's
connections need be touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from afaf.network.forward import Parameters, Training, forward
from afaf.network.ops import FusedKernel, fuse
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
from afaf.training.folded_trunk import FoldedTrunk
from afaf.training.losses import CrossEntropy, Total, total
from afaf.training.named import weight_number
from afaf.training.plan import Loss, Step
from afaf.training.quadratic import PenaltyTensors, ProximalStep, QuadraticPenalty
from afaf.training.step import Workspace, clip_scale, masked_outputs
from afaf.training.task_data import RngScope, TaskData

MOST_CLASSES, MOST_LOGITS = 128, 1 << 20  # that one tile of logits holds: of an image, and of a batch
LONG, FEW = 16, 0.5  # connections of so many weights are moved one by one if so small a share of them is the task's
S = TypeVar("S", bound=PenaltyTensors)


@dataclass
class MixedPrecisionWorkspace(Workspace):
    """A workspace with shadows, all laid out in memory as products read them."""

    compute_weights: list[Tensor] = field(default_factory=list)
    history: dict[int, Tensor] = field(default_factory=dict)  # l of W_l -> sum over the epoch's steps of the connections' importance
    listed: dict[int, Tensor] = field(default_factory=dict)  # l of W_l -> numbers of the task's connections, where only they are touched
    read: list[Tensor] = field(default_factory=list)  # the leaves of the present step
    held: dict[int, WeightPenalty] = field(default_factory=dict)  # l of W_l -> the springs on its weights, where the kernels see to them
    energy: Tensor | None = None  # what these add to the loss of the present step
    loss_buffers: LossBuffers | None = None  # where the loss is cross-entropy, and perhaps springs
    penalty: QuadraticPenalty | None = None  # on biases and norms, beside the court
    side_stream: SideStream | None = None
    keys: Tensor = field(default_factory=lambda: torch.empty(0))  # of dropout in each layer, at the present moment
    all_move: dict[int, bool] = field(default_factory=dict)  # l of W_l -> whether there is nothing for the mask to hold back

    @classmethod
    def of(cls, work: Workspace, dtype: torch.dtype) -> MixedPrecisionWorkspace:
        """The same part of the network, laid out anew."""
        device = work.parameters.weights[0].device
        whole = {l: torch.arange(work.spec.layer(l).size, device=device) for l in range(1, work.spec.L + 1)}
        here = cls(**{**vars(work), "neurons": {l: index.to(torch.int32) for l, index in (whole | work.neurons).items()}})
        weights = [here.laid_out(l, w) for l, w in enumerate(work.parameters.weights, 1)]
        here.parameters = Parameters(weights, work.parameters.biases, work.parameters.norms)
        here.importance.connections = [here.laid_out(l, c) for l, c in enumerate(work.importance.connections, 1)]
        here.moving = {l: here.laid_out(l, mask) for l, mask in work.moving.items()}
        here.all_move = {l: bool(mask.all()) for l, mask in here.moving.items()}
        here.plan = replace(work.plan, loss=here._laid_out_springs(work.plan.loss), after_step=here._laid_out_springs(work.plan.after_step))
        here._hold_weights()
        here.compute_weights = [w.to(dtype, copy=True) for w in weights]
        here.listed = {l: torch.nonzero(mask.flatten()).flatten() for l, mask in here.moving.items() if here._worth_listing(l, mask)}
        here.history = {l: torch.zeros_like(here.importance.connections[l - 1]) for l in here.moving}
        here.keys = here._keys_of(work.scope)
        here.side_stream = SideStream(device) if device.type == "cuda" else None
        return here

    def _worth_listing(self, l: int, moving: Tensor) -> bool:
        """Whether few connections of many weights are the task's, and a step moves them by the gradient of their product alone."""
        connection, plan = self.spec.connections(l), self.plan
        long = not connection.product.maps and connection.block >= LONG and moving.shape[2] == 1
        same_number = plan.rewire is None or plan.rewire_repeats
        return long and same_number and plan.clip is None and type(plan.loss) is CrossEntropy and bool(0 < moving.mean() < FEW)

    def laid_out(self, l: int, tensor: Tensor) -> Tensor:
        """Something shaped as W_l, (outputs, inputs, block), in the order of W_l in memory."""
        if self.spec.connections(l).product.maps:
            return tensor.permute(0, 2, 1).contiguous().permute(0, 2, 1)
        return tensor.contiguous()

    def _laid_out_springs(self, part: Any) -> Any:
        if isinstance(part, Total):
            return Total(tuple(self._laid_out_springs(term) for term in part.terms))
        return part.laid_out(self.laid_out) if isinstance(part, PenaltyTensors) else part

    def _hold_weights(self) -> None:
        """Let the kernels that move weights see to the springs on them, instead of the loss or a step after the step."""
        plan = self.plan
        rest, penalty = taken_apart(plan.loss)
        if plan.clip is None or plan.importance:
            return
        if isinstance(plan.after_step, ProximalStep):
            others = self._hold(plan.after_step, proximal=True)
            self.plan = replace(plan, after_step=others if others.importance else None)
        elif penalty is not None:
            left = self._hold(penalty, proximal=False)
            self.plan = replace(plan, loss=total(rest, left) if left.importance else rest)

    def _hold(self, penalty: S, *, proximal: bool) -> S:
        """Hold the weights that may all move; returns the other springs."""
        for name in penalty.importance:
            l = weight_number(name)
            if l is not None and self.all_move.get(l):
                self.held[l] = WeightPenalty(penalty.strength, penalty.importance[name], penalty.anchor[name], proximal)
        taken = {f"weight/{l}" for l in self.held}
        return penalty.only(lambda name: name not in taken)

    def use_fused_loss(self, step: Tensor, losses: Tensor, right: Tensor) -> None:
        """Let cross-entropy be computed by its own kernel, which notes losses and right answers by step."""
        loss, penalty = taken_apart(self.plan.loss)
        rows = self.spec.n_classes
        if type(loss) is not CrossEntropy or loss.outputs != self.plan.outputs or rows > MOST_CLASSES:
            return
        if tile_of_logits(self.plan.batch_size, rows) > MOST_LOGITS:
            return
        if penalty is not None and (self.plan.clip is None or penalty.on_weights):
            return
        self.penalty = penalty
        device = losses.device
        there = torch.arange(rows, device=device) if self.rows is None else self.rows
        place = torch.full((rows,), -1, dtype=torch.int32, device=device)
        place[there] = torch.arange(len(there), dtype=torch.int32, device=device)
        counted = torch.zeros(rows, dtype=torch.int32, device=device)
        counted[loss.columns] = 1
        resting = self.parameters.biases[-1] if self.resting is None else self.resting
        moving = self.biases.get(self.spec.L - 1) if self.plan.clip is None else None
        self.loss_buffers = LossBuffers(place, counted, resting, step, losses, right, moving, self.plan.lr)

    def take_step(self, h: Tensor, labels: Tensor, mode: Training) -> tuple[Tensor, Tensor] | None:
        if self.loss_buffers is None or not isinstance(mode, Fused):
            judged = super().take_step(h, labels, mode)
            return judged if judged is None or self.energy is None else (judged[0] + self.energy, judged[1])
        live = self.leaves()
        read = masked_outputs(self.as_read(live), self)
        way = None if self.side_stream is None else self._backward(self.side_stream)
        z = forward(self.spec, read, h, mode=replace(mode, without_bias=self.spec.L, backward=way), first=self.entry)
        verdict: Tensor = FusedCrossEntropy.apply(z, live.biases[-1], labels, self.loss_buffers)  # type: ignore[no-untyped-call]
        verdict.backward(verdict.detach())  # what is passed has no value, either
        if self.side_stream is not None:
            self.side_stream.join()
        pulled = None if self.penalty is None else self.penalty(Step(h, labels, z, live))
        if pulled is not None:
            pulled.backward()
        self.update(live)
        for more in (pulled, self.energy):
            if more is not None:
                self.loss_buffers.losses.index_add_(0, self.loss_buffers.step, more.detach().reshape(1))
        return None

    def _backward(self, side_stream: SideStream) -> Backward | None:
        """What may move before the whole gradient is known; the output's shadow is not the leaf where rows are silenced."""
        if self.plan.clip is not None:
            return None
        masked_outputs = self.plan.masked_outputs is not None and self.rows is None
        weights = frozenset(l for l in self.moving if l < self.spec.L - 1 or not masked_outputs)
        return Backward(side_stream, self, weights, frozenset(l for l in self.biases if l < self.spec.L - 1))

    def refresh(self) -> None:
        """Cast shadows, and list the task's connections anew, in the same memory: their number does not change while it is learned."""
        self._refresh_compute_weights()
        for l, listed in self.listed.items():
            order = torch.sort(self.moving[l].flatten(), descending=True, stable=True).indices
            listed.copy_(order[: len(listed)])

    def changing(self) -> list[Tensor]:
        return [*super().changing(), *self.compute_weights, *self.history.values()]

    def _refresh_compute_weights(self) -> None:
        """What stands still is left alone: a trunk may be reading it."""
        for l in self.moving:
            self.compute_weights[l - 1].copy_(self.parameters.weights[l - 1])

    @property
    def value_bytes(self) -> int:
        return self.compute_weights[-1].element_size()

    def images(self, data: TaskData, samples: Tensor, scope: RngScope) -> Tensor:
        return crops(data, samples, scope, self.compute_weights[0].dtype) if can_crop(data) else super().images(data, samples, scope)

    def begin(self, scope: RngScope) -> None:
        """Captured steps find the keys of the moment where they were."""
        super().begin(scope)
        self.keys.copy_(self._keys_of(scope))

    def mode_now(self, samples: Tensor) -> Fused:
        return self._mode(self.keys, samples)

    def mode(self, scope: RngScope, samples: Tensor) -> Fused:
        return self._mode(self._keys_of(scope), samples)

    def folded_trunk(self) -> FoldedTrunk:
        """All of it, as the kernels lay it out."""
        return FoldedTrunk(self.as_read(self.parameters), self.neurons)

    def trunk_mode(self, scope: RngScope, samples: Tensor, neurons: dict[int, Tensor]) -> Training:
        return self.mode(scope, samples)

    def _keys_of(self, scope: RngScope) -> Tensor:
        """The moment's key of dropout in each layer, on the device."""
        keys = [scope.key("dropout", layer) for layer in range(self.spec.L)]
        return torch.tensor(keys, dtype=torch.int32).to(self.parameters.biases[0].device, non_blocking=True)

    def _mode(self, keys: Tensor, samples: Tensor) -> Fused:
        by_layer = dict(enumerate(keys))
        maps = [l for l in range(2, self.spec.L) if self.spec.layer(l).positions > 1]
        dense = frozenset(l for l in maps if not self.spec.connections(l).product.maps)
        return Fused(
            by_layer,
            samples.to(torch.int32),
            self.grad_mask,
            self.plan.norm_moves,
            self.neurons,
            seen_by_dense=dense,
            positive=frozenset(l + 1 for l in range(1, self.spec.L) if fuse(self.spec.connections(l).then, FusedKernel())[0].dropout),
        )

    def as_read(self, live: Parameters) -> Parameters:
        self.read = [compute_weight.detach().requires_grad_(l in self.moving) for l, compute_weight in enumerate(self.compute_weights, 1)]
        return Parameters(list(self.read), live.biases, live.norms)

    @torch.no_grad()
    def update(self, live: Parameters) -> None:
        plan = self.plan
        of_weights = self._gradients(live)
        scale = self._clip(live, of_weights)
        for l, (gradient, more) in of_weights.items():
            self.move(l, gradient, more, scale)
        moves = [(tensor, tensor.grad, mask) for tensor, mask in self.small_moves(live) if tensor.grad is not None]
        if moves:
            tensors, gradients, masks = (list(part) for part in zip(*moves, strict=True))
            torch._foreach_mul_(gradients, masks)
            if scale is not None:
                torch._foreach_mul_(gradients, scale)
            torch._foreach_sub_(tensors, gradients, alpha=plan.lr)
        if plan.after_step is not None:
            plan.after_step(self.parameters, plan.lr)
            if not isinstance(plan.after_step, ProximalStep) or plan.after_step.on_weights:
                self._refresh_compute_weights()

    @torch.no_grad()
    def move(self, l: int, gradient: Tensor, more: Tensor | None = None, scale: Tensor | None = None) -> None:
        """Move W_l, its shadow and its importance; `more` is the gradient of what the loss says about the weights themselves."""
        weight, compute_weight = self.parameters.weights[l - 1], self.compute_weights[l - 1]
        if l in self.held and scale is not None:
            penalised_step(weight, compute_weight, gradient, self.held[l], self.plan.lr, scale)
        elif l in self.listed and more is None and scale is None:
            update_listed(self.listed[l], weight, compute_weight, gradient, self.plan.lr, self._importance(l))
        else:
            update(weight, compute_weight, gradient, more, self.moving[l], self.plan.lr, scale, self._importance(l))

    def _importance(self, l: int) -> tuple[Tensor, Tensor] | None:
        return (self.importance.connections[l - 1], self.history[l]) if self.plan.importance else None

    @torch.no_grad()
    def learn(self, l: int, above: Tensor, h: Tensor) -> None:
        """`move`, and take the gradient on the way: for connections of one weight."""
        learn(above, h, self.parameters.weights[l - 1], self.compute_weights[l - 1], self.moving[l], self.plan.lr, self._importance(l))

    def move_of(self, l: int) -> Move:
        return Move(self.parameters.biases[l - 1], self.biases[l], self.plan.lr)

    def _gradients(self, live: Parameters) -> dict[int, tuple[Tensor, Tensor | None]]:
        """Of the weights: what was taken at the shadow, and what the loss says about the weights themselves, if anything."""
        found: dict[int, tuple[Tensor, Tensor | None]] = {}
        for l in self.moving:
            gradient, more = self.read[l - 1].grad, live.weights[l - 1].grad
            if gradient is not None:
                found[l] = (gradient.float() + more, None) if more is not None and l in self.held else (gradient, more)
        return found

    def _clip(self, live: Parameters, of_weights: dict[int, tuple[Tensor, Tensor | None]]) -> Tensor | None:
        """The factor that keeps the norm of the whole gradient, of what moves, within the plan's limit."""
        if self.plan.clip is None:
            return None
        norms = [(tensor.grad * mask).norm() for tensor, mask in self.small_moves(live) if tensor.grad is not None]
        energies = []
        for l, (gradient, more) in of_weights.items():
            if self.all_move[l] and more is None:
                square, energy = penalty_grad_norm(gradient, self.parameters.weights[l - 1], self.held.get(l))
                norms.append(square.sqrt())
                energies.append(energy)
            else:
                norms.append(((gradient if more is None else gradient + more) * self.moving[l]).norm())
        self.energy = torch.stack(energies).sum() if any(not held.proximal for held in self.held.values()) else None
        return clip_scale(norms, self.plan.clip)

    def flush_importance(self, steps: int) -> None:
        """An epoch ends: what neurons gained in it is the history of their outgoing connections.

        Connections that are not listed have no history: their importance, if any, was the same at every step.
        """
        for l, history in self.history.items():
            if l in self.listed and self.plan.importance:
                history += steps * self.importance.connections[l - 1] * (1 - self.moving[l])
            self.importance.neurons[l - 1] += history.sum(dim=(0, 2))
            history.zero_()


def taken_apart(loss: Loss) -> tuple[Loss, QuadraticPenalty | None]:
    """A loss without its springs, and these."""
    if not isinstance(loss, Total):
        return loss, None
    penalty = [term for term in loss.terms if isinstance(term, QuadraticPenalty)]
    others = [term for term in loss.terms if not isinstance(term, QuadraticPenalty)]
    return (total(*others), penalty[0]) if len(penalty) == 1 and others else (loss, None)
