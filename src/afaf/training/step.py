"""One step of SGD, on whatever part of the network is laid out for it.

A `Workspace` is that part: the whole network as it is (eager), or the neurons that matter to the task, gathered into small tensors
(compact). A step reads and writes the workspace alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from afaf.network.forward import Parameters, Training, forward
from afaf.network.spec import NetworkSpec
from afaf.subnets.rewire import Importance
from afaf.training.folded_trunk import FoldedTrunk, InplaceForward, fold_trunk
from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan, Step
from afaf.training.task_data import RngScope, TaskData


@dataclass
class Workspace:
    """Parameters, masks and importances in the coordinates of the neurons that are there."""

    spec: NetworkSpec  # of the whole network: kinds, kernels, operations
    plan: LearningPlan
    parameters: Parameters
    importance: Importance
    moving: dict[int, Tensor]  # l of W_l -> 1 where a weight moves
    biases: dict[int, Tensor]
    grad_mask: dict[int, Tensor]
    entry: int = 1  # steps go through W_l for l >= entry; below is a trunk that stands still
    neurons: dict[int, Tensor] = field(default_factory=dict)  # layer -> numbers of the neurons that are there, where not all are
    rows: Tensor | None = None  # output rows that are there, where not all are; the others answer with their bias,
    resting: Tensor | None = None  # which is here, for all rows
    scope: RngScope = field(default_factory=lambda: RngScope(0, 0))  # of the present steps

    @classmethod
    def whole(cls, learner: Learner, plan: LearningPlan) -> Workspace:
        network = learner.network
        moving = {l: learner.ledger.owned_by(l, plan.task).to(network.dtype) for l in range(plan.first_trainable, network.spec.L)}
        return cls(network.spec, plan, network.parameters, learner.importance, moving, plan.biases, plan.grad_mask)

    def mode(self, scope: RngScope, samples: Tensor) -> Training:
        """How the network behaves for these images at this moment of learning."""
        return Training(
            keys={layer: scope.key("dropout", layer) for layer in range(2, self.spec.L)},
            samples=samples.to(torch.int32),
            grad_mask=self.grad_mask,
            norm_moves=self.plan.norm_moves,
            neurons=self.neurons,
        )

    @property
    def value_bytes(self) -> int:
        """Of a neuron's value between layers."""
        return self.parameters.weights[-1].element_size()

    def images(self, data: TaskData, samples: Tensor, scope: RngScope) -> Tensor:
        """These images as they are seen at this moment."""
        return data.batch(samples, scope)[0]

    def begin(self, scope: RngScope) -> None:
        """From here on steps belong to this moment."""
        self.scope = scope

    def mode_now(self, samples: Tensor) -> Training:
        """How the network behaves for these images in a step."""
        return self.mode(self.scope, samples)

    def folded_trunk(self) -> FoldedTrunk:
        """What lies below the entry."""
        return fold_trunk(self.spec, self.parameters, self.neurons, self.entry - 1)

    def trunk_mode(self, scope: RngScope, samples: Tensor, neurons: dict[int, Tensor]) -> Training:
        """How these neurons below the entry behave."""
        return InplaceForward(**{**vars(self.mode(scope, samples)), "neurons": neurons})

    def leaves(self) -> Parameters:
        """The parameters as leaves of a new graph that share the workspace's memory; those that can move want gradients."""
        parameters = self.parameters
        return Parameters(
            [w.detach().requires_grad_(l in self.moving) for l, w in enumerate(parameters.weights, 1)],
            [b.detach().requires_grad_(l in self.biases) for l, b in enumerate(parameters.biases, 1)],
            {layer: norm.leaf(layer in self.plan.norms) for layer, norm in parameters.norms.items()},
        )

    def as_read(self, live: Parameters) -> Parameters:
        """The parameters as the products read them."""
        return live

    @torch.no_grad()
    def update(self, live: Parameters) -> None:
        """w <- w - lr * gradient wherever something may move, and the importance of what moved."""
        plan = self.plan
        moves = [(live.weights[l - 1], mask, l) for l, mask in self.moving.items()]
        moves += [(tensor, mask, 0) for tensor, mask in self.small_moves(live)]
        gradients = [None if tensor.grad is None else tensor.grad.mul_(mask) for tensor, mask, _ in moves]
        scale = None if plan.clip is None else clip_scale([gradient.norm() for gradient in gradients if gradient is not None], plan.clip)
        for (tensor, _, l), gradient in zip(moves, gradients, strict=True):
            if gradient is None:
                continue
            if scale is not None:
                gradient *= scale
            tensor.sub_(gradient, alpha=plan.lr)
            if plan.importance and l:
                self.importance.add(l, gradient.square_().mul_(plan.lr))  # |change x gradient| = lr * gradient^2 with plain SGD
        if plan.after_step is not None:
            plan.after_step(self.parameters, plan.lr)

    def take_step(self, h: Tensor, labels: Tensor, mode: Training) -> tuple[Tensor, Tensor] | None:
        """Learn from one batch: the loss and the logits, or None where they were noted elsewhere."""
        return take_step(self, h, labels, mode)

    def use_fused_loss(self, step: Tensor, losses: Tensor, right: Tensor) -> None:
        """Let losses and right answers be noted by step, where that is faster than to return them."""

    def flush_importance(self, steps: int) -> None:
        """An epoch of so many steps has ended."""

    def refresh(self) -> None:
        """Weights, importances and masks have changed elsewhere than in a step."""

    def changing(self) -> list[Tensor]:
        """Everything that a step may change."""
        norms = [tensor for norm in self.parameters.norms.values() for tensor in norm.tensors().values()]
        return [*self.parameters.weights, *self.parameters.biases, *norms, *self.importance.connections, *self.importance.neurons]

    def small_moves(self, live: Parameters) -> list[tuple[Tensor, Tensor]]:
        """Biases, gains and shifts that can move, each with its mask."""
        moves = [(live.biases[l - 1], mask) for l, mask in self.biases.items()]
        for layer, mask in self.plan.norms.items():
            moves += [(live.norms[layer].gain, mask), (live.norms[layer].shift, mask)]
        return moves


def take_step(work: Workspace, h: Tensor, labels: Tensor, mode: Training) -> tuple[Tensor, Tensor]:
    """Learn from one batch: `h` are its images, or what the trunk made of them. Returns the loss and the logits."""
    live = work.leaves()
    logits = forward(work.spec, masked_outputs(work.as_read(live), work), h, mode=mode, first=work.entry).to(
        work.parameters.weights[-1].dtype
    )
    if work.rows is not None and work.resting is not None:
        logits = work.resting.repeat(len(h), 1).index_copy(1, work.rows, logits)
    loss = work.plan.loss(Step(h, labels, logits, live))
    loss.backward()
    work.update(live)
    return loss.detach(), logits.detach()


def masked_outputs(live: Parameters, work: Workspace) -> Parameters:
    """The output as the task sees it: other rows' weights at 0, where these rows are there at all."""
    if work.rows is not None or work.plan.masked_outputs is None:
        return live
    weight = live.weights[-1] * (~work.plan.masked_outputs).to(live.weights[-1].dtype)[:, None, None]
    return Parameters([*live.weights[:-1], weight], live.biases, live.norms)


def clip_scale(norms: list[Tensor], largest: float) -> Tensor:
    """What the whole gradient is to be multiplied with, so that its norm is not above the largest allowed; `norms` are its parts'."""
    return torch.clamp(largest / (torch.stack(norms).norm() + 1e-6), max=1.0)
