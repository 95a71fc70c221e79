"""Steps of plain SGD under a quadratic penalty: one kernel for the norm of the gradient, one for the update."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.training.cuda.kernels.language import jit, like, tl, triton

SIZE = 4096  # weights of a tile


@dataclass(frozen=True)
class WeightPenalty:
    """A quadratic penalty on one W_l, its tensors in the memory order of the weights."""

    strength: float
    importance: Tensor
    anchor: Tensor
    proximal: bool  # applied in closed form after the step, not as a term of the loss


@jit
def _penalty_grad_norm(  # type: ignore[no-untyped-def]
    gradient_at, weight_at, importance_at, anchor_at, parts_at, strength, count, PENALISED: tl.constexpr, SIZE: tl.constexpr
):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    gradient = tl.load(gradient_at + at, mask=inside, other=0.0).to(tl.float32)
    if PENALISED:
        distance = tl.load(weight_at + at, mask=inside, other=0.0) - tl.load(anchor_at + at, mask=inside, other=0.0)
        penalty_grad = strength * tl.load(importance_at + at, mask=inside, other=0.0) * distance
        gradient += penalty_grad
        tl.store(parts_at + 2 * tl.program_id(0) + 1, tl.sum(penalty_grad * distance, axis=0) / 2)
    else:
        tl.store(parts_at + 2 * tl.program_id(0) + 1, 0.0)
    tl.store(parts_at + 2 * tl.program_id(0), tl.sum(gradient * gradient, axis=0))


@jit
def _penalised_step(  # type: ignore[no-untyped-def]
    weight_at,
    compute_at,
    gradient_at,
    importance_at,
    anchor_at,
    scale_at,
    lr_at,
    strength,
    count,
    PROXIMAL: tl.constexpr,
    SIZE: tl.constexpr,
):
    lr = tl.load(lr_at)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    weight = tl.load(weight_at + at, mask=inside, other=0.0)
    gradient = tl.load(gradient_at + at, mask=inside, other=0.0).to(tl.float32)
    anchor = tl.load(anchor_at + at, mask=inside, other=0.0)
    stiffness = strength * tl.load(importance_at + at, mask=inside, other=0.0)
    if PROXIMAL:
        weight -= lr * tl.load(scale_at) * gradient
        weight += lr * stiffness / (1 + lr * stiffness) * (anchor - weight)
    else:
        weight -= lr * tl.load(scale_at) * (gradient + stiffness * (weight - anchor))
    tl.store(weight_at + at, weight, mask=inside)
    tl.store(compute_at + at, weight, mask=inside)


def penalty_grad_norm(gradient: Tensor, weight: Tensor, penalty: WeightPenalty | None) -> Tensor:
    """(squared norm of the gradient, value of the penalty); unless it is proximal, the penalty's gradient is included."""
    importance, anchor, strength = (penalty.importance, penalty.anchor, penalty.strength) if penalty else (weight, weight, 0.0)
    programs = triton.cdiv(weight.numel(), SIZE)
    parts = torch.empty(programs, 2, dtype=torch.float32, device=weight.device)
    penalised = penalty is not None and not penalty.proximal
    _penalty_grad_norm[(programs,)](like(weight, gradient), weight, importance, anchor, parts, strength, weight.numel(), penalised, SIZE)
    return parts.sum(0)


def penalised_step(weight: Tensor, compute_weight: Tensor, gradient: Tensor, penalty: WeightPenalty, lr: Tensor, scale: Tensor) -> None:
    """w <- w - lr scale (g + the penalty's gradient), or w - lr scale g and then the proximal step; the compute weights, too."""
    _penalised_step[(triton.cdiv(weight.numel(), SIZE),)](
        weight,
        compute_weight,
        like(weight, gradient),
        penalty.importance,
        penalty.anchor,
        scale,
        lr,
        penalty.strength,
        weight.numel(),
        penalty.proximal,
        SIZE,
    )
