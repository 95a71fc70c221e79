"""Optimiser steps on weights, with their compute weights and importances, in one kernel.

For plain SGD also for the task's connections alone or, if a connection is one weight, together with the gradient. Weights are shaped
(outputs, inputs, block). In memory either the inputs or the weights of a connection are adjacent.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from afaf.training.cuda.kernels.language import jit, like, rounding, tl, triton
from afaf.training.optimisers import SGD, AdamW, Optimiser

PLAIN, ADAMW = SGD(), 3  # rules of `_update`: plain SGD (0), with momentum or decay (1), Nesterov's (2), AdamW
BLOCK, WEIGHTS = 16, 512  # of a tile of weights: of each connection, and altogether
LISTED = 16  # connections that one program moves
OUTPUTS, INPUTS, IMAGES = 16, 64, 64  # of a tile of a product: neurons above and below, images added up at once


@jit
def _update(  # type: ignore[no-untyped-def]
    weight_at, compute_at, gradient_at, more_at, moving_at, connections_at, history_at, scale_at, lr_at, first_at, second_at,
    inputs, to_input, to_weight, to_gradient, beta1, beta2, decay, epsilon,
    RULE: tl.constexpr, MOMENTUM: tl.constexpr,
    block: tl.constexpr, MORE: tl.constexpr, BY_WEIGHT: tl.constexpr, SCALED: tl.constexpr, IMPORTANCE: tl.constexpr,
    BLOCK: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    lr = tl.load(lr_at)
    o = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    if not BY_WEIGHT:
        moving = tl.load(moving_at + o * inputs + i, mask=i < inputs, other=0.0)[None, :]
    if SCALED:
        scale = tl.load(scale_at)
    total = tl.zeros((INPUTS,), dtype=tl.float32)
    for start in tl.static_range(0, block, BLOCK):
        b = start + tl.arange(0, BLOCK)
        inside = (b < block)[:, None] & (i < inputs)[None, :]
        at = o * block * inputs + (b * to_weight)[:, None] + (i * to_input)[None, :]
        gradient = tl.load(gradient_at + at + o * (to_gradient - block * inputs), mask=inside, other=0.0).to(tl.float32)
        if MORE:
            gradient += tl.load(more_at + at, mask=inside, other=0.0)
        if BY_WEIGHT:
            moving = tl.load(moving_at + at, mask=inside, other=0.0)
        gradient *= moving
        if SCALED:
            gradient *= scale
        weight = tl.load(weight_at + at, mask=inside, other=0.0)
        if RULE == 0:
            gained = gradient * gradient
            weight -= lr * gradient
        elif RULE == 3:
            mean = tl.load(first_at + at, mask=inside, other=0.0)
            mean += (1 - beta1) * (gradient - mean)
            square = beta2 * tl.load(second_at + at, mask=inside, other=0.0) + (1 - beta2) * gradient * gradient
            tl.store(first_at + at, mean, mask=inside)
            tl.store(second_at + at, square, mask=inside)
            change = tl.load(lr_at + 1) * mean / (tl.sqrt(square) / tl.load(lr_at + 2) + epsilon) + lr * decay * weight * moving
            gained = tl.abs(change * gradient)
            weight -= change
        else:
            direction = gradient + decay * weight * moving
            if MOMENTUM:
                momentum = beta1 * tl.load(first_at + at, mask=inside, other=0.0) + direction
                tl.store(first_at + at, momentum, mask=inside)
                direction = direction + beta1 * momentum if RULE == 2 else momentum
            gained = tl.abs(lr * direction * gradient)
            weight -= lr * direction
        tl.store(weight_at + at, weight, mask=inside)
        tl.store(compute_at + at, weight, mask=inside)
        if IMPORTANCE:
            if BY_WEIGHT:
                running = tl.load(connections_at + at, mask=inside, other=0.0) + (lr * gradient * gradient if RULE == 0 else gained)
                tl.store(connections_at + at, running, mask=inside)
                tl.store(history_at + at, tl.load(history_at + at, mask=inside, other=0.0) + running, mask=inside)
            else:
                total += tl.sum(gained, axis=0)
    if IMPORTANCE and not BY_WEIGHT:
        at = o * inputs + i
        running = tl.load(connections_at + at, mask=i < inputs, other=0.0) + (lr * total if RULE == 0 else total)
        tl.store(connections_at + at, running, mask=i < inputs)
        tl.store(history_at + at, tl.load(history_at + at, mask=i < inputs, other=0.0) + running, mask=i < inputs)


@jit
def _update_listed(  # type: ignore[no-untyped-def]
    listed_at, weight_at, compute_at, gradient_at, connections_at, history_at, lr_at, count,
    block: tl.constexpr, IMPORTANCE: tl.constexpr, LISTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lr = tl.load(lr_at)
    k = tl.program_id(0) * LISTED + tl.arange(0, LISTED)
    b = tl.arange(0, BLOCK)
    connection = tl.load(listed_at + k, mask=k < count, other=0)
    inside = (k < count)[:, None] & (b < block)[None, :]
    at = connection[:, None] * block + b[None, :]
    gradient = tl.load(gradient_at + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_at + at, mask=inside, other=0.0) - lr * gradient
    tl.store(weight_at + at, weight, mask=inside)
    tl.store(compute_at + at, weight, mask=inside)
    if IMPORTANCE:
        running = tl.load(connections_at + connection, mask=k < count, other=0.0) + lr * tl.sum(gradient * gradient, axis=1)
        tl.store(connections_at + connection, running, mask=k < count)
        tl.store(history_at + connection, tl.load(history_at + connection, mask=k < count, other=0.0) + running, mask=k < count)


@jit
def _learn(  # type: ignore[no-untyped-def]
    above_at, h_at, weight_at, compute_at, moving_at, connections_at, history_at, lr_at, images, outputs, inputs,
    parts: tl.constexpr, IMPORTANCE: tl.constexpr, PRECISION: tl.constexpr,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, IMAGES: tl.constexpr,
):  # fmt: skip
    lr = tl.load(lr_at)
    o = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    i = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    gradient = tl.zeros((OUTPUTS, INPUTS), dtype=tl.float32)
    for part in range(parts):
        n = part * IMAGES + tl.arange(0, IMAGES)
        above = tl.load(above_at + n[None, :] * outputs + o[:, None], mask=(n < images)[None, :] & (o < outputs)[:, None], other=0.0)
        h = tl.load(h_at + n[:, None] * inputs + i[None, :], mask=(n < images)[:, None] & (i < inputs)[None, :], other=0.0)
        gradient = tl.dot(above, h, gradient, input_precision=PRECISION)
    inside = (o < outputs)[:, None] & (i < inputs)[None, :]
    at = o[:, None] * inputs + i[None, :]
    gradient *= tl.load(moving_at + at, mask=inside, other=0.0)
    weight = tl.load(weight_at + at, mask=inside, other=0.0) - lr * gradient
    tl.store(weight_at + at, weight, mask=inside)
    tl.store(compute_at + at, weight, mask=inside)
    if IMPORTANCE:
        running = tl.load(connections_at + at, mask=inside, other=0.0) + lr * gradient * gradient
        tl.store(connections_at + at, running, mask=inside)
        tl.store(history_at + at, tl.load(history_at + at, mask=inside, other=0.0) + running, mask=inside)


def update(
    weight: Tensor, compute_weight: Tensor, gradient: Tensor, more: Tensor | None, moving: Tensor, coefficients: Tensor,
    scale: Tensor | None, importance: tuple[Tensor, Tensor] | None, optimiser: Optimiser = PLAIN, buffers: Sequence[Tensor] = (),
) -> None:  # fmt: skip
    """A step of the optimiser where `moving` is 1, in place, with the compute weights, the buffers and the importance.

    `moving` and the importances are shaped like the weight, or have one number for each connection. `importance` is the running
    importance of the connections, and the sum of it over the steps. Buffers lie in memory as the weight does.
    """
    if isinstance(optimiser, AdamW):
        rule, beta1, beta2, epsilon = ADAMW, optimiser.beta1, optimiser.beta2, optimiser.epsilon
    else:
        rule, beta1, beta2, epsilon = 0 if optimiser.plain else 2 if optimiser.nesterov else 1, optimiser.momentum, 0.0, 0.0
    first, second = [*buffers, weight, weight][:2]
    outputs, inputs, block = weight.shape
    _, to_input, to_weight = weight.stride()
    whole = triton.next_power_of_2(block)
    height = whole if to_weight == 1 else min(BLOCK, whole)
    tile = min(max(1, WEIGHTS // height), max(16, triton.next_power_of_2(inputs)))
    connections, history = (weight, weight) if importance is None else importance
    if gradient.stride()[1:] != weight.stride()[1:]:
        gradient = like(weight, gradient)
    _update[(outputs, triton.cdiv(inputs, tile))](
        weight, compute_weight, gradient, weight if more is None else like(weight, more), moving, connections, history,
        weight if scale is None else scale, coefficients, first, second, inputs, to_input, to_weight, gradient.stride(0),
        beta1, beta2, optimiser.weight_decay, epsilon, rule, beta1 > 0,
        block, more is not None, moving.shape[2] == block and block > 1, scale is not None, importance is not None, height, tile,
    )  # fmt: skip


def update_listed(
    listed: Tensor, weight: Tensor, compute_weight: Tensor, gradient: Tensor, lr: Tensor, importance: tuple[Tensor, Tensor] | None
) -> None:
    """`update` of the connections whose indices are listed; each one's weights must be adjacent in memory."""
    block, count = weight.shape[2], len(listed)
    connections, history = (weight, weight) if importance is None else importance
    _update_listed[(triton.cdiv(count, LISTED),)](
        listed, weight, compute_weight, gradient.contiguous(), connections, history, lr, count,
        block, importance is not None, LISTED, triton.next_power_of_2(block),
    )  # fmt: skip


def learn(
    above: Tensor, h: Tensor, weight: Tensor, compute_weight: Tensor, moving: Tensor, lr: Tensor, importance: tuple[Tensor, Tensor] | None
) -> None:
    """`update` of connections of one weight, with the gradient computed from `above`, (images, outputs), and h, (images, inputs)."""
    (outputs, inputs, _), images = weight.shape, len(h)
    connections, history = (weight, weight) if importance is None else importance
    _learn[(triton.cdiv(outputs, OUTPUTS), triton.cdiv(inputs, INPUTS))](
        above.contiguous(), h.contiguous(), weight, compute_weight, moving, connections, history, lr, images, outputs, inputs,
        triton.cdiv(images, IMAGES), importance is not None, rounding(), OUTPUTS, INPUTS, IMAGES,
    )  # fmt: skip
