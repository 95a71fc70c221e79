"""Moving weights, their shadows and their importances in one pass; between dense layers the gradient is taken in the same pass.

Weights are shaped (outputs, inputs, block). In memory either the inputs are next to each other, or the weights of a connection.
"""

from __future__ import annotations

import torch
from torch import Tensor

from afaf.engine.kernels.language import jit, tl, triton

BLOCK, WEIGHTS = 4, 512  # of a tile of weights to be moved: of each connection, and altogether
OUTPUTS, COLUMNS, IMAGES = 32, 256, 64  # of a tile of a product: neurons above, weights of each, images added up at once
WARPS = 8


@jit
def _update(  # type: ignore[no-untyped-def]
    weight_at, shadow_at, gradient_at, more_at, moving_at, connections_at, history_at, scale_at, lr, inputs, to_input, to_weight,
    block: tl.constexpr, MORE: tl.constexpr, BY_WEIGHT: tl.constexpr, SCALED: tl.constexpr, IMPORTANCE: tl.constexpr,
    BLOCK: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
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
        gradient = tl.load(gradient_at + at, mask=inside, other=0.0).to(tl.float32)
        if MORE:
            gradient += tl.load(more_at + at, mask=inside, other=0.0)
        if BY_WEIGHT:
            moving = tl.load(moving_at + at, mask=inside, other=0.0)
        gradient *= moving
        if SCALED:
            gradient *= scale
        weight = tl.load(weight_at + at, mask=inside, other=0.0) - lr * gradient
        tl.store(weight_at + at, weight, mask=inside)
        tl.store(shadow_at + at, weight, mask=inside)
        if IMPORTANCE:
            if BY_WEIGHT:
                running = tl.load(connections_at + at, mask=inside, other=0.0) + lr * gradient * gradient
                tl.store(connections_at + at, running, mask=inside)
                tl.store(history_at + at, tl.load(history_at + at, mask=inside, other=0.0) + running, mask=inside)
            else:
                total += tl.sum(gradient * gradient, axis=0)
    if IMPORTANCE and not BY_WEIGHT:
        at = o * inputs + i
        running = tl.load(connections_at + at, mask=i < inputs, other=0.0) + lr * total
        tl.store(connections_at + at, running, mask=i < inputs)
        tl.store(history_at + at, tl.load(history_at + at, mask=i < inputs, other=0.0) + running, mask=i < inputs)


@jit
def _learn(  # type: ignore[no-untyped-def]
    above_at, h_at, weight_at, shadow_at, moving_at, connections_at, history_at, lr, images, outputs, inputs,
    parts: tl.constexpr, block: tl.constexpr, BY_WEIGHT: tl.constexpr, IMPORTANCE: tl.constexpr, PRECISION: tl.constexpr,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCK: tl.constexpr, IMAGES: tl.constexpr,
):  # fmt: skip
    o = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    j = tl.arange(0, INPUTS * BLOCK)  # each connection's weights, rounded up
    i = tl.program_id(1) * INPUTS + j // BLOCK
    column = i * block + j % BLOCK
    inside = (i < inputs) & (j % BLOCK < block)
    gradient = tl.zeros((OUTPUTS, INPUTS * BLOCK), dtype=tl.float32)
    for part in range(parts):
        n = part * IMAGES + tl.arange(0, IMAGES)
        above = tl.load(above_at + n[None, :] * outputs + o[:, None], mask=(n < images)[None, :] & (o < outputs)[:, None], other=0.0)
        h = tl.load(h_at + n[:, None] * (inputs * block) + column[None, :], mask=(n < images)[:, None] & inside[None, :], other=0.0)
        gradient = tl.dot(above, h, gradient, input_precision=PRECISION)
    there = (o < outputs)[:, None] & inside[None, :]
    at = o.to(tl.int64)[:, None] * (inputs * block) + column[None, :]
    by = at if BY_WEIGHT else o[:, None] * inputs + i[None, :]
    moves = there & (tl.load(moving_at + by, mask=there, other=0.0) > 0)  # others are neither read nor written
    gradient = tl.where(moves, gradient, 0.0)
    weight = tl.load(weight_at + at, mask=moves, other=0.0) - lr * gradient
    tl.store(weight_at + at, weight, mask=moves)
    tl.store(shadow_at + at, weight, mask=moves)
    if IMPORTANCE:
        gain = lr * gradient * gradient
        if not BY_WEIGHT:
            gain = tl.sum(tl.reshape(gain, (OUTPUTS, INPUTS, BLOCK)), axis=2)
            connection = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
            at = o[:, None] * inputs + connection[None, :]
            there = (o < outputs)[:, None] & (connection < inputs)[None, :]
        running = tl.load(connections_at + at, mask=there, other=0.0) + gain
        tl.store(connections_at + at, running, mask=there)
        tl.store(history_at + at, tl.load(history_at + at, mask=there, other=0.0) + running, mask=there)


def update(
    weight: Tensor, shadow: Tensor, gradient: Tensor, more: Tensor | None, moving: Tensor, lr: float, scale: Tensor | None,
    importance: tuple[Tensor, Tensor] | None,
) -> None:  # fmt: skip
    """w <- w - lr g wherever something moves, in place, the shadow too; and, in one pass, its importance.

    `moving` and the importances are shaped like the weight, or have one number for each connection. `importance` is the running
    importance of the connections, and the sum of it over the steps.
    """
    outputs, inputs, block = weight.shape
    _, to_input, to_weight = weight.stride()
    whole = triton.next_power_of_2(block)
    height = whole if to_weight == 1 else min(BLOCK, whole)
    tile = min(max(1, WEIGHTS // height), max(16, triton.next_power_of_2(inputs)))
    connections, history = (weight, weight) if importance is None else importance
    _update[(outputs, triton.cdiv(inputs, tile))](
        weight, shadow, _like(weight, gradient), weight if more is None else _like(weight, more), moving, connections, history,
        weight if scale is None else scale, lr, inputs, to_input, to_weight,
        block, more is not None, moving.shape[2] == block and block > 1, scale is not None, importance is not None, height, tile,
    )  # fmt: skip


def learn(
    above: Tensor, h: Tensor, weight: Tensor, shadow: Tensor, moving: Tensor, lr: float, importance: tuple[Tensor, Tensor] | None
) -> None:
    """`update` with the gradient of a dense layer: of its neurons it is `above`, (images, outputs); they saw h, (images, inputs x block)."""
    images, (outputs, inputs, block) = len(h), weight.shape
    whole = triton.next_power_of_2(block)
    rows, tile = min(OUTPUTS, max(16, triton.next_power_of_2(outputs))), max(1, COLUMNS // whole)
    connections, history = (weight, weight) if importance is None else importance
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    _learn[(triton.cdiv(outputs, rows), triton.cdiv(inputs, tile))](
        above, h.contiguous(), weight, shadow, moving, connections, history, lr, images, outputs, inputs,
        triton.cdiv(images, IMAGES), block, moving.shape[2] == block and block > 1, importance is not None, precision,
        rows, tile, whole, IMAGES, num_warps=WARPS, num_stages=1,
    )  # fmt: skip


def _like(weight: Tensor, tensor: Tensor) -> Tensor:
    """In the same order in memory."""
    return tensor if tensor.stride() == weight.stride() else torch.empty_like(weight, dtype=tensor.dtype).copy_(tensor)
