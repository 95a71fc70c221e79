"""The reference engine: short, obvious, any device. Faster engines are compared with it.

Sparsity is simulated here: dense tensors, gradients multiplied by "does the task own this connection".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.errors import DivergedError
from afaf.learning.feed import Feed, Moment
from afaf.learning.learner import Learner
from afaf.learning.plan import LearningPlan, Step
from afaf.network.forward import Norm, Parameters, Training, forward


@dataclass(frozen=True)
class EpochReport:
    """What an epoch was like; `loss` and `accuracy` (percent, over the outputs in the loss) are means over its training images."""

    task: int
    phase: int
    epoch: int
    epochs: int
    loss: float
    accuracy: float


OnEpoch = Callable[[EpochReport], None]


class EagerEngine:
    """Carries out learning plans step by step."""

    name = "eager"

    def learn(self, learner: Learner, plan: LearningPlan, feed: Feed, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None:
        """Learn from `first_epoch` to the plan's last, rewiring in between."""
        for epoch in range(first_epoch, plan.epochs):
            report = self._epoch(learner, plan, feed, epoch)
            if plan.rewire is not None and epoch < plan.epochs - 1:
                plan.rewire(learner, epoch)
            if on_epoch is not None:
                on_epoch(report)

    def _epoch(self, learner: Learner, plan: LearningPlan, feed: Feed, epoch: int) -> EpochReport:
        moment = Moment(learner.seed, plan.task, plan.phase, epoch)
        moving = {l: learner.ledger.owned_by(l, plan.task).to(learner.network.dtype) for l in range(plan.first, learner.network.spec.L)}
        losses, right = [], torch.zeros((), dtype=torch.int64, device=feed.device)
        for index in feed.order(moment).split(plan.batch_size):
            loss, logits, labels = take_step(learner, plan, feed, index, moment, moving)
            losses.append(loss * len(index))
            right += count_right(logits, labels, plan.outputs)
        per_step = torch.stack(losses)
        check_finite(per_step, plan, epoch)
        return EpochReport(plan.task, plan.phase, epoch, plan.epochs, float(per_step.sum()) / len(feed), 100 * int(right) / len(feed))


def take_step(
    learner: Learner, plan: LearningPlan, feed: Feed, index: Tensor, moment: Moment, moving: dict[int, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of SGD on one batch; returns its loss, logits and labels."""
    network = learner.network
    x, labels = feed.batch(index, moment)
    live = _with_gradients(network.parameters, plan)
    mode = Training(
        rate=network.spec.dropout,
        keys={layer: moment.key("dropout", layer) for layer in range(2, network.spec.L)},
        samples=index.to(torch.int32),
        passes=plan.passes,
        norm_moves=plan.norm_moves,
    )
    logits = forward(network.spec, silence(live, plan.silenced), x, mode=mode)
    loss = plan.loss(Step(x, labels, logits, live))
    loss.backward()
    with torch.no_grad():
        _update(learner, plan, live, moving)
    return loss.detach(), logits.detach(), labels


def silence(parameters: Parameters, rows: Tensor | None) -> Parameters:
    """The same parameters with the weights of some output rows at 0."""
    if rows is None:
        return parameters
    heard = (~rows).to(parameters.weights[-1].dtype)[:, None, None]
    return Parameters([*parameters.weights[:-1], parameters.weights[-1] * heard], parameters.biases, parameters.norms)


def _with_gradients(parameters: Parameters, plan: LearningPlan) -> Parameters:
    """The parameters as leaves of a new graph, those that can move wanting gradients."""
    first = plan.first - 1
    weights = [w.detach().requires_grad_(i >= first) for i, w in enumerate(parameters.weights)]
    biases = [b.detach().requires_grad_(i + 1 in plan.biases) for i, b in enumerate(parameters.biases)]
    norms = {layer: _norm_with_gradients(norm, layer in plan.norms) for layer, norm in parameters.norms.items()}
    return Parameters(weights, biases, norms)


def _norm_with_gradients(norm: Norm, moves: bool) -> Norm:
    return Norm(norm.gain.detach().requires_grad_(moves), norm.shift.detach().requires_grad_(moves), norm.mean, norm.var)


def _update(learner: Learner, plan: LearningPlan, live: Parameters, moving: dict[int, Tensor]) -> None:
    """w <- w - lr * gradient for everything that may move; importance on the way. The live leaves share memory with the network."""
    moves: list[tuple[Tensor, Tensor]] = []
    for l, mask in moving.items():
        moves.append((live.weights[l - 1], mask))
    moves += [(live.biases[l - 1], mask) for l, mask in plan.biases.items()]
    for layer, mask in plan.norms.items():
        moves += [(live.norms[layer].gain, mask), (live.norms[layer].shift, mask)]
    gradients = [tensor.grad * mask if tensor.grad is not None else None for tensor, mask in moves]
    scale = _clip_scale([g for g in gradients if g is not None], plan.clip)
    for i, ((tensor, _), gradient) in enumerate(zip(moves, gradients, strict=True)):
        if gradient is None:
            continue
        gradient = gradient if scale is None else gradient * scale
        change = plan.lr * gradient
        tensor -= change
        if plan.importance and i < len(moving):
            learner.importance.add(plan.first + i, (change * gradient).abs())
    if plan.after_step is not None:
        plan.after_step(learner.network.parameters, plan.lr)


def _clip_scale(gradients: list[Tensor], largest: float | None) -> Tensor | None:
    if largest is None or not gradients:
        return None
    norm = torch.stack([g.norm() for g in gradients]).norm()
    return torch.clamp(largest / (norm + 1e-6), max=1.0)


def count_right(logits: Tensor, labels: Tensor, outputs: tuple[int, ...] | None) -> Tensor:
    """How many images have their highest logit, among the outputs in the loss, at their class."""
    if outputs is None or len(outputs) == logits.shape[1]:
        return (logits.argmax(1) == labels).sum()
    columns = torch.tensor(outputs, device=logits.device)
    return (columns[logits[:, columns].argmax(1)] == labels).sum()


def check_finite(per_step: Tensor, plan: LearningPlan, epoch: int) -> None:
    """A loss that is not a number ends the run, with the step at which it happened."""
    bad = torch.nonzero(~torch.isfinite(per_step)).flatten()
    if len(bad):
        raise DivergedError(
            f"the loss is not finite in task {plan.task}, epoch {epoch + 1}, step {int(bad[0]) + 1}: "
            "lower learn.lr, or the strength of the method's penalty"
        )
