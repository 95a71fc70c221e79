"""One step of SGD, on whatever part of the network is laid out for it.

A `Workspace` is that part: the whole network as it is (eager), or the neurons that matter to the task, gathered into small tensors
(compact). A step reads and writes the workspace alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from afaf.engine.kernels import can_fuse, update_and_weigh
from afaf.learning.feed import Moment
from afaf.learning.learner import Learner
from afaf.learning.plan import LearningPlan, Step
from afaf.network.forward import Norm, Parameters, Training, forward
from afaf.network.spec import NetworkSpec
from afaf.subnets.rewire import Importance


@dataclass
class Workspace:
    """Parameters, masks and importances in the coordinates of the neurons that are there."""

    spec: NetworkSpec  # of the whole network: kinds, kernels, operations
    plan: LearningPlan
    parameters: Parameters
    importance: Importance
    moving: dict[int, Tensor]  # l of W_l -> 1 where a weight moves
    biases: dict[int, Tensor]
    passes: dict[int, Tensor]
    entry: int = 1  # steps go through W_l for l >= entry; below is a trunk that stands still
    neurons: dict[int, Tensor] = field(default_factory=dict)  # layer -> numbers of the neurons that are there, where not all are
    rows: Tensor | None = None  # output rows that are there, where not all are; the others answer with their bias

    @classmethod
    def whole(cls, learner: Learner, plan: LearningPlan) -> Workspace:
        network = learner.network
        moving = {l: learner.ledger.owned_by(l, plan.task).to(network.dtype) for l in range(plan.first, network.spec.L)}
        return cls(network.spec, plan, network.parameters, learner.importance, moving, plan.biases, plan.passes)

    def mode(self, moment: Moment, samples: Tensor) -> Training:
        """How the network behaves for these images at this moment of learning."""
        return Training(
            rate=self.spec.dropout,
            keys={layer: moment.key("dropout", layer) for layer in range(2, self.spec.L)},
            samples=samples.to(torch.int32),
            passes=self.passes,
            norm_moves=self.plan.norm_moves,
            neurons=self.neurons,
        )


def take_step(work: Workspace, h: Tensor, labels: Tensor, mode: Training) -> tuple[Tensor, Tensor]:
    """Learn from one batch: `h` are its images, or what the trunk made of them. Returns the loss and the logits."""
    live = _with_gradients(work)
    logits = forward(work.spec, _silenced(live, work), h, mode=mode, first=work.entry).to(work.parameters.weights[-1].dtype)
    if work.rows is not None:
        logits = work.parameters.biases[-1].expand(len(h), -1).index_copy(1, work.rows, logits)
    loss = work.plan.loss(Step(h, labels, logits, live))
    loss.backward()
    with torch.no_grad():
        _update(work, live)
    return loss.detach(), logits.detach()


def _silenced(live: Parameters, work: Workspace) -> Parameters:
    """The output as the task sees it: other rows' weights at 0, or only the rows that are there."""
    weight, bias = live.weights[-1], live.biases[-1]
    if work.rows is not None:
        bias = bias[work.rows]
    elif work.plan.silenced is not None:
        weight = weight * (~work.plan.silenced).to(weight.dtype)[:, None, None]
    return Parameters([*live.weights[:-1], weight], [*live.biases[:-1], bias], live.norms)


def _with_gradients(work: Workspace) -> Parameters:
    """The parameters as leaves of a new graph that share the workspace's memory; those that can move want gradients."""
    parameters = work.parameters
    weights = [w.detach().requires_grad_(l in work.moving) for l, w in enumerate(parameters.weights, 1)]
    biases = [b.detach().requires_grad_(l in work.biases) for l, b in enumerate(parameters.biases, 1)]
    norms = {
        layer: Norm(
            norm.gain.detach().requires_grad_(layer in work.plan.norms),
            norm.shift.detach().requires_grad_(layer in work.plan.norms),
            norm.mean,
            norm.var,
        )
        for layer, norm in parameters.norms.items()
    }
    return Parameters(weights, biases, norms)


def _update(work: Workspace, live: Parameters) -> None:
    """w <- w - lr * gradient wherever something may move, and the importance of what moved."""
    plan = work.plan
    moves = [(live.weights[l - 1], mask, l) for l, mask in work.moving.items()]
    moves += [(live.biases[l - 1], mask, 0) for l, mask in work.biases.items()]
    for layer, mask in plan.norms.items():
        moves += [(live.norms[layer].gain, mask, 0), (live.norms[layer].shift, mask, 0)]
    if plan.importance and plan.clip is None:
        moves = [move for move in moves if not _fused(work, *move)]
    gradients = [None if tensor.grad is None else tensor.grad.mul_(mask) for tensor, mask, _ in moves]
    scale = _clip_scale([gradient for gradient in gradients if gradient is not None], plan.clip)
    for (tensor, _, l), gradient in zip(moves, gradients, strict=True):
        if gradient is None:
            continue
        if scale is not None:
            gradient *= scale
        tensor.sub_(gradient, alpha=plan.lr)
        if plan.importance and l:
            work.importance.add(l, gradient.square_().mul_(plan.lr))  # |change x gradient| = lr * gradient^2 with plain SGD
    if plan.after_step is not None:
        plan.after_step(work.parameters, plan.lr)


def _fused(work: Workspace, weight: Tensor, mask: Tensor, l: int) -> bool:
    """Update and weigh W_l in one pass, where there is a kernel for it."""
    if not l or weight.grad is None or not can_fuse(weight, mask):
        return False
    connections = work.importance.connections[l - 1]
    update_and_weigh(weight, weight.grad, mask, connections, work.plan.lr)
    work.importance.neurons[l - 1] += connections.sum(dim=(0, 2))
    return True


def _clip_scale(gradients: list[Tensor], largest: float | None) -> Tensor | None:
    if largest is None or not gradients:
        return None
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    return torch.clamp(largest / (norm + 1e-6), max=1.0)
