"""Steps for CUDA with their element-wise work fused: the same as the plain ones, up to the precision chosen.

Beside each W_l lies its *shadow*: the same weights in the precision and the layout (outputs, block, inputs) in which products read them
fastest. A product reads the shadow, its gradient is taken there, and one kernel then moves the weight, its shadow and its importance.
Bias, ReLU, dropout and pool are one kernel forward and one backward.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.engine.compact import neurons_last
from afaf.engine.kernels import Court, Draw, activate, add_up, deactivate, judge, move_bias, patches, update
from afaf.engine.lanes import Beside
from afaf.engine.standing import Standing
from afaf.engine.step import Workspace, clip_scale, silenced, take_step
from afaf.learning.feed import Moment
from afaf.learning.losses import CrossEntropy, Total
from afaf.learning.plan import LearningPlan
from afaf.learning.quadratic import Springs
from afaf.network.forward import Norm, Observer, Parameters, Training, forward
from afaf.network.spec import Connections, Operation

MOST_CLASSES = 128  # that one tile of logits holds
FEW_CHANNELS = 8  # below this a convolution is faster as a product of matrices


@dataclass(frozen=True)
class Backward:
    """How gradients of weights and biases are taken: beside those of the neurons, and moved along as soon as they are known."""

    beside: Beside
    work: Shadowed
    weights: frozenset[int]  # l of the W_l that move at once
    biases: frozenset[int]


class Product(torch.autograd.Function):
    """h times the weights of a shadow: rows of a matrix, or (`size`) maps, channels last, with kernels of that size."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, shadow: Tensor, size: int, l: int, backward: Backward | None) -> Tensor:
        ctx.save_for_backward(h, shadow)
        ctx.size, ctx.l, ctx.way = size, l, backward
        if size:
            return neurons_last(F.conv2d(h, _kernels(shadow, size)))
        return F.linear(h, _padded(shadow, h.shape[1]))

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:  # type: ignore[override]
        h: Tensor
        shadow: Tensor
        h, shadow = ctx.saved_tensors
        above = above.contiguous()

        def weights() -> Tensor:
            if ctx.size:
                gradient = _convolution_backward(above, h, shadow, ctx.size, [False, True, False])[1]
                return gradient.permute(0, 2, 3, 1).reshape(shadow.shape)
            return (above.t() @ h)[:, : shadow[0].numel()].reshape(shadow.shape)

        def below() -> Tensor:
            if ctx.size:
                return _convolution_backward(above, h, shadow, ctx.size, [True, False, False])[0]
            return above @ shadow.flatten(1)

        need_below, need_weights = ctx.needs_input_grad[:2]
        way: Backward | None = ctx.way
        if way is None or ctx.l not in way.weights or not need_weights:
            return below() if need_below else None, weights() if need_weights else None, None, None, None
        gradient = way.beside.do(weights, above, h)
        passed = below() if need_below else None
        way.beside.do(lambda: way.work.move(ctx.l, gradient))  # begins when `below` has read the weights
        return passed, None, None, None, None


class Activate(torch.autograd.Function):
    """Bias, ReLU, dropout and pool of (images, height, width, neurons); no gradient through neurons that `passes` cuts."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, bias: Tensor, passes: Tensor | None, draw: Draw | None, pool: bool, l: int, backward: Backward | None
    ) -> Tensor:
        h, winner = activate(z, bias, draw, pool)
        ctx.save_for_backward(winner if pool else h, passes)
        ctx.pool, ctx.shape, ctx.scale = pool, z.shape, 1.0 if draw is None else 1 / (1 - draw.rate)
        ctx.l, ctx.way = l, backward
        return h

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor | None, None, None, None, None, None]:  # type: ignore[override]
        saved, passes = ctx.saved_tensors
        below, parts = deactivate(above.contiguous(), saved, passes, ctx.scale, ctx.pool, ctx.shape)
        way: Backward | None = ctx.way
        if way is None or ctx.l not in way.biases:
            return below, add_up(parts) if ctx.needs_input_grad[1] else None, None, None, None, None, None
        way.beside.do(lambda: way.work.move_bias(ctx.l, parts), parts)
        return below, None, None, None, None, None, None


class Judge(torch.autograd.Function):
    """Cross-entropy of the output's products and biases; the loss is noted in the court, so that what is returned has no value."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, labels: Tensor, court: Court) -> Tensor:
        ctx.save_for_backward(*judge(z, bias, labels, court))
        return z.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        gradient, bias_gradient = ctx.saved_tensors
        return gradient, bias_gradient, None, None


@dataclass
class Fused(Training):
    """Training whose weights are views of shadows, and whose keys of dropout lie on the device."""

    bare: bool = False  # leave the output's bias to the judge
    backward: Backward | None = None

    def neurons_above(
        self,
        join: Connections,
        layer: int,
        h: Tensor,
        weight: Tensor,
        bias: Tensor,
        operations: tuple[Operation, ...],
        norms: dict[int, Norm],
        observe: Observer | None,
    ) -> Tensor:
        shadow = weight.permute(0, 2, 1)
        if operations[:1] != ("relu",):  # the output: logits are summed up in full precision
            z = self._product(join, layer - 1, h, shadow)[:, 0, 0]
            if self.bare:
                return z
            z = z + bias
            return self.operate(operations, layer, self.cut(layer, z), norms, observe)
        together = next(n for n in (3, 2, 1) if operations[:n] in FUSIBLE)
        activation = self._activate(operations[:together], layer, self._product(join, layer - 1, h, shadow), bias)
        return self.operate(operations[together:], layer, activation, norms, observe)

    def operate(
        self, operations: tuple[Operation, ...], layer: int, h: Tensor, norms: dict[int, Norm], observe: Observer | None = None
    ) -> Tensor:
        if operations == ("dropout", "pool"):  # of what is positive already, so that another ReLU changes nothing
            return self._activate(operations, layer, neurons_last(h), h.new_zeros(h.shape[1], dtype=torch.float32))
        return super().operate(operations, layer, h, norms, observe)

    def _product(self, join: Connections, l: int, h: Tensor, shadow: Tensor) -> Tensor:
        """W_l h, as (images, height, width, neurons); the bias is left to the activation."""
        size, few = join.kernel, shadow.shape[2] < FEW_CHANNELS and not h.requires_grad
        if join.kind == "dense":
            rows, kernel = _flat(h, join).to(shadow.dtype), 0
        elif few:
            rows, kernel = patches(h, size, shadow.dtype), 0
        else:
            rows, kernel = h.to(shadow.dtype).contiguous(memory_format=torch.channels_last), size
        z: Tensor = Product.apply(rows, shadow, kernel, l, self.backward)  # type: ignore[no-untyped-call]
        if join.kind == "dense":
            return z[:, None, None, :]
        return z if kernel else z.view(len(h), h.shape[2] - size + 1, h.shape[3] - size + 1, -1)

    def _activate(self, operations: tuple[Operation, ...], layer: int, z: Tensor, bias: Tensor) -> Tensor:
        draw = None
        if "dropout" in operations and self.rate:
            key = self.keys[layer]
            assert isinstance(key, Tensor)
            draw = Draw(key, self.samples, self.neurons[layer], self.rate)
        h: Tensor = Activate.apply(z, bias, self.passes.get(layer), draw, "pool" in operations, layer - 1, self.backward)  # type: ignore[no-untyped-call]
        return h.flatten(1) if h.shape[1:3] == (1, 1) and z.shape[1:3] == (1, 1) else h.permute(0, 3, 1, 2)


FUSIBLE: tuple[tuple[Operation, ...], ...] = (("relu",), ("relu", "dropout"), ("relu", "pool"), ("relu", "dropout", "pool"))


def _padded(shadow: Tensor, values: int) -> Tensor:
    """The weights as a matrix, with zeros where the rows they are multiplied with have been padded."""
    matrix = shadow.flatten(1)
    return matrix if matrix.shape[1] == values else F.pad(matrix, (0, values - matrix.shape[1]))


def _kernels(shadow: Tensor, size: int) -> Tensor:
    outputs, _, inputs = shadow.shape
    return shadow.view(outputs, size, size, inputs).permute(0, 3, 1, 2)


def _convolution_backward(above: Tensor, h: Tensor, shadow: Tensor, size: int, wanted: list[bool]) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        above.permute(0, 3, 1, 2), h, _kernels(shadow, size), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted
    )
    return gradients


def _flat(h: Tensor, join: Connections) -> Tensor:
    """The neurons' values one after the other: position by position if a neuron has several, as in a shadow."""
    return h.permute(0, 2, 3, 1).flatten(1) if h.dim() == 4 and join.block > 1 else h.flatten(1)


@dataclass
class Shadowed(Workspace):
    """A workspace with shadows. Its weights, masks and importances lie in memory as (outputs, block, inputs)."""

    shadows: list[Tensor] = field(default_factory=list)
    history: dict[int, Tensor] = field(default_factory=dict)  # l of W_l -> sum over the epoch's steps of the connections' importance
    read: list[Tensor] = field(default_factory=list)  # the leaves of the present step
    court: Court | None = None  # where the loss is cross-entropy and nothing else
    beside: Beside | None = None
    all_move: dict[int, bool] = field(default_factory=dict)  # l of W_l -> whether there is nothing for the mask to hold back

    @classmethod
    def of(cls, work: Workspace, dtype: torch.dtype) -> Shadowed:
        """The same part of the network, laid out anew."""
        device = work.parameters.weights[0].device
        whole = {l: torch.arange(work.spec.layer(l).size, device=device) for l in range(1, work.spec.L + 1)}
        here = cls(**{**vars(work), "neurons": {l: index.to(torch.int32) for l, index in (whole | work.neurons).items()}})
        here.parameters = Parameters([_by_block(w) for w in work.parameters.weights], work.parameters.biases, work.parameters.norms)
        here.importance.connections = [_by_block(c) for c in work.importance.connections]
        here.moving = {l: _by_block(mask) for l, mask in work.moving.items()}
        here.plan = _laid_out(work.plan)
        here.all_move = {l: bool(mask.all()) for l, mask in here.moving.items()}
        here.shadows = [w.permute(0, 2, 1).to(dtype, copy=True) for w in here.parameters.weights]
        here.history = {l: torch.zeros_like(here.importance.connections[l - 1]) for l in here.moving}
        here.beside = Beside(device) if device.type == "cuda" else None
        return here

    def open_court(self, step: Tensor, losses: Tensor, right: Tensor) -> None:
        """Let cross-entropy be computed by its own kernel, which notes losses and right answers by step."""
        loss, rows = self.plan.loss, self.spec.n_classes
        if type(loss) is not CrossEntropy or loss.outputs != self.plan.outputs or rows > MOST_CLASSES:
            return
        device = losses.device
        there = torch.arange(rows, device=device) if self.rows is None else self.rows
        place = torch.full((rows,), -1, dtype=torch.int32, device=device)
        place[there] = torch.arange(len(there), dtype=torch.int32, device=device)
        counted = torch.zeros(rows, dtype=torch.int32, device=device)
        counted[loss.columns] = 1
        resting = self.parameters.biases[-1] if self.resting is None else self.resting
        self.court = Court(place, counted, resting, step, losses, right)

    def take_step(self, h: Tensor, labels: Tensor, mode: Fused) -> tuple[Tensor, Tensor] | None:
        """Learn from one batch; the loss and the logits, or None where the court has taken note."""
        if self.court is None:
            return take_step(self, h, labels, mode)
        live = self.leaves()
        read = silenced(self.as_read(live), self)
        way = None if self.beside is None else self._backward(self.beside)
        z = forward(self.spec, read, h, mode=replace(mode, bare=True, backward=way), first=self.entry)
        Judge.apply(z, live.biases[-1], labels, self.court).backward()  # type: ignore[no-untyped-call]
        if self.beside is not None:
            self.beside.join()
        self.update(live)
        return None

    def _backward(self, beside: Beside) -> Backward | None:
        """What may move before the whole gradient is known; the output's shadow is not the leaf where rows are silenced."""
        if self.plan.clip is not None:
            return None
        silenced = self.plan.silenced is not None and self.rows is None
        weights = frozenset(l for l in self.moving if l < self.spec.L - 1 or not silenced)
        return Backward(beside, self, weights, frozenset(l for l in self.biases if l < self.spec.L - 1))

    def cast_shadows(self) -> None:
        """After weights changed elsewhere than in a step. What stands still is left alone: a trunk may be reading it."""
        for l in self.moving:
            self.shadows[l - 1].copy_(self.parameters.weights[l - 1].permute(0, 2, 1))

    def mode(self, moment: Moment, samples: Tensor) -> Training:
        return self.mode_with(self.keys_of(moment), samples)

    def standing(self) -> Standing:
        """All of it, as the kernels lay it out."""
        return Standing(self.as_read(self.parameters), self.neurons)

    def ahead(self, moment: Moment, samples: Tensor, neurons: dict[int, Tensor]) -> Training:
        return self.mode(moment, samples)

    def keys_of(self, moment: Moment) -> Tensor:
        """The moment's key of dropout in each layer, on the device."""
        keys = [moment.key("dropout", layer) for layer in range(self.spec.L)]
        return torch.tensor(keys, dtype=torch.int32).to(self.parameters.biases[0].device, non_blocking=True)

    def mode_with(self, keys: Tensor, samples: Tensor) -> Fused:
        by_layer = dict(enumerate(keys))
        return Fused(self.spec.dropout, by_layer, samples.to(torch.int32), self.passes, self.plan.norm_moves, self.neurons)

    def as_read(self, live: Parameters) -> Parameters:
        self.read = [shadow.detach().requires_grad_(l in self.moving) for l, shadow in enumerate(self.shadows, 1)]
        return Parameters([shadow.permute(0, 2, 1) for shadow in self.read], live.biases, live.norms)

    @torch.no_grad()
    def update(self, live: Parameters) -> None:
        plan = self.plan
        scale = self._clip(live)
        for l in self.moving:
            gradient = self.read[l - 1].grad
            if gradient is not None:
                self.move(l, gradient, live.weights[l - 1].grad, scale)
        moves = [(tensor, tensor.grad, mask) for tensor, mask in self.small_moves(live) if tensor.grad is not None]
        if moves:
            tensors, gradients, masks = (list(part) for part in zip(*moves, strict=True))
            torch._foreach_mul_(gradients, masks)
            if scale is not None:
                torch._foreach_mul_(gradients, scale)
            torch._foreach_sub_(tensors, gradients, alpha=plan.lr)
        if plan.after_step is not None:
            plan.after_step(self.parameters, plan.lr)
            self.cast_shadows()

    @torch.no_grad()
    def move(self, l: int, gradient: Tensor, more: Tensor | None = None, scale: Tensor | None = None) -> None:
        """Move W_l, its shadow and its importance; `more` is the gradient of what the loss says about the weights themselves."""
        importance = (self.importance.connections[l - 1].permute(0, 2, 1), self.history[l].permute(0, 2, 1))
        update(
            self.parameters.weights[l - 1].permute(0, 2, 1),
            self.shadows[l - 1],
            gradient.contiguous(),
            None if more is None else more.permute(0, 2, 1).contiguous(),
            self.moving[l].permute(0, 2, 1),
            self.plan.lr,
            scale,
            importance if self.plan.importance else None,
        )

    @torch.no_grad()
    def move_bias(self, l: int, parts: Tensor) -> None:
        move_bias(self.parameters.biases[l - 1], parts, self.biases[l], self.plan.lr)

    def _clip(self, live: Parameters) -> Tensor | None:
        """The factor that keeps the norm of the whole gradient, of what moves, within the plan's limit."""
        if self.plan.clip is None:
            return None
        gradients = [tensor.grad * mask for tensor, mask in self.small_moves(live) if tensor.grad is not None]
        for l, mask in self.moving.items():
            gradient, more = self.read[l - 1].grad, live.weights[l - 1].grad
            if gradient is not None:
                whole = gradient if more is None else gradient + more.permute(0, 2, 1)
                gradients.append(whole if self.all_move[l] else whole * mask.permute(0, 2, 1))
        return clip_scale(gradients, self.plan.clip)

    def settle(self) -> None:
        """An epoch ends: what neurons gained in it is the history of their outgoing connections."""
        for l, history in self.history.items():
            self.importance.neurons[l - 1] += history.sum(dim=(0, 2))
            history.zero_()


def _laid_out(plan: LearningPlan) -> LearningPlan:
    """The plan with its springs in the layout of the weights."""

    def lay(part: Any) -> Any:
        if isinstance(part, Total):
            return Total(tuple(lay(term) for term in part.terms))
        return part.laid_out(_by_block) if isinstance(part, Springs) else part

    return replace(plan, loss=lay(plan.loss), after_step=lay(plan.after_step))


def _by_block(tensor: Tensor) -> Tensor:
    """The same shape (outputs, inputs, block), but with the inputs next to each other in memory."""
    return tensor.permute(0, 2, 1).contiguous().permute(0, 2, 1)
