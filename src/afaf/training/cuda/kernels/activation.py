"""Bias, ReLU, dropout and pool in one pass, and their gradients in another.

Activations are shaped (images, height, width, neurons), with height = width = 1 in a dense layer. They have the same order in memory or,
if a dense layer follows, each neuron's places are adjacent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.training.cuda.kernels.language import jit, mix, tl, triton

ROWS, ROWS_BACK, NEURONS = 16, 64, 64  # of a tile of activations, forward and backward
PARTIAL_SUMS = 512  # at most, of each neuron's gradients
NO_WINNER = 4  # of a pool in which nothing was positive


@dataclass(frozen=True)
class Draw:
    """The inputs of dropout: the epoch's key (on the device, so that it can change for a captured step), the images, the neurons."""

    key: Tensor  # (2,) int32
    samples: Tensor  # (images,) int32
    neurons: Tensor  # (neurons,) int32
    rate: float


@dataclass(frozen=True)
class Move:
    """The inputs of a plain SGD step on biases, besides their gradient."""

    bias: Tensor
    moving: Tensor  # 1 where one may move
    lr: Tensor  # one number on the device


@jit
def _activate(  # type: ignore[no-untyped-def]
    z_at, bias_at, h_at, winner_at, key_at, samples_at, neurons_at, rows, neurons, height, width, out_height, out_width, limit, scale,
    to_image, to_place, to_neuron,
    POOL: tl.constexpr, DROPOUT: tl.constexpr, NO_WINNER: tl.constexpr, ROWS: tl.constexpr, NEURONS: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * NEURONS + tl.arange(0, NEURONS)
    inside = (r < rows)[:, None] & (c < neurons)[None, :]
    image = r // (out_height * out_width)
    place = r % (out_height * out_width)
    bias = tl.load(bias_at + c, mask=c < neurons, other=0.0)
    if DROPOUT:
        sample = tl.load(samples_at + image, mask=r < rows, other=0).to(tl.uint32, bitcast=True)
        first = tl.load(key_at).to(tl.uint32, bitcast=True)
        second = tl.load(key_at + 1).to(tl.uint32, bitcast=True)
        base = mix(mix(sample ^ first) ^ second)
        number = tl.load(neurons_at + c, mask=c < neurons, other=0)
        words = (height * width + 1) // 2
    best = tl.zeros((ROWS, NEURONS), dtype=tl.float32)
    winner = tl.full((ROWS, NEURONS), NO_WINNER, dtype=tl.int32)
    for k in tl.static_range(4 if POOL else 1):
        if POOL:
            y = (place // out_width) * 2 + k // 2
            x = (place % out_width) * 2 + k % 2
        else:
            y = place // out_width
            x = place % out_width
        at = ((image * height + y) * width + x).to(tl.int64)[:, None] * neurons + c[None, :]
        value = tl.load(z_at + at, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
        if DROPOUT:
            position = y * width + x
            word = (number[None, :] * words + (position // 2)[:, None]).to(tl.uint32, bitcast=True)
            bits = mix(base[:, None] ^ (word * 0x9E3779B9))
            half = tl.where((position % 2)[:, None] == 1, bits >> 16, bits & 0xFFFF).to(tl.int32)
            value = tl.where((half ^ 0x8000) >= limit, value * scale, 0.0)
        better = (value > best) | (value != value)  # NaN must not be lost
        best = tl.where(better, value, best)
        winner = tl.where(better, k, winner)
    out = (image.to(tl.int64) * to_image + place * to_place)[:, None] + (c * to_neuron)[None, :]
    tl.store(h_at + out, best, mask=inside)
    if POOL:
        tl.store(winner_at + out, winner.to(tl.int8), mask=inside)


@jit
def _deactivate(  # type: ignore[no-untyped-def]
    above_at, saved_at, passes_at, below_at, partial_at, bias_at, moving_at, lr_at,
    rows, neurons, height, width, out_height, out_width, scale,
    to_image, to_place, to_neuron,
    tiles: tl.constexpr, POOL: tl.constexpr, CUT: tl.constexpr, MOVE: tl.constexpr,
    NO_WINNER: tl.constexpr, ROWS: tl.constexpr, NEURONS: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1) * NEURONS + tl.arange(0, NEURONS)
    if CUT:
        scale = scale * tl.load(passes_at + c, mask=c < neurons, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros((NEURONS,), dtype=tl.float32)
    for tile in range(tiles):
        r = (tl.program_id(0) * tiles + tile) * ROWS + tl.arange(0, ROWS)
        inside = (r < rows)[:, None] & (c < neurons)[None, :]
        image = r // (out_height * out_width)
        place = r % (out_height * out_width)
        out = (image.to(tl.int64) * to_image + place * to_place)[:, None] + (c * to_neuron)[None, :]
        gradient = tl.load(above_at + out, mask=inside, other=0.0).to(tl.float32) * scale
        if POOL:
            winner = tl.load(saved_at + out, mask=inside, other=NO_WINNER)
            gradient = tl.where(winner < NO_WINNER, gradient, 0.0)
            for k in tl.static_range(4):
                y = (place // out_width) * 2 + k // 2
                x = (place % out_width) * 2 + k % 2
                at = ((image * height + y) * width + x).to(tl.int64)[:, None] * neurons + c[None, :]
                tl.store(below_at + at, tl.where(winner == k, gradient, 0.0), mask=inside)
        else:
            h = tl.load(saved_at + out, mask=inside, other=0.0)
            gradient = tl.where(h > 0, gradient, 0.0)
            tl.store(below_at + r.to(tl.int64)[:, None] * neurons + c[None, :], gradient, mask=inside)
        total += tl.sum(gradient, axis=0)
    if MOVE:
        moved = tl.load(lr_at) * tl.load(moving_at + c, mask=c < neurons, other=0.0) * total
        tl.store(bias_at + c, tl.load(bias_at + c, mask=c < neurons, other=0.0) - moved, mask=c < neurons)
    else:
        tl.store(partial_at + tl.program_id(0) * neurons + c, total, mask=c < neurons)


@jit
def _add_up(  # type: ignore[no-untyped-def]
    parts_at, sum_at, moving_at, parts, neurons, lr_at, MOVE: tl.constexpr, PARTS: tl.constexpr, NEURONS: tl.constexpr
):
    p = tl.arange(0, PARTS)
    c = tl.program_id(0) * NEURONS + tl.arange(0, NEURONS)
    inside = (p < parts)[:, None] & (c < neurons)[None, :]
    total = tl.sum(tl.load(parts_at + p[:, None] * neurons + c[None, :], mask=inside, other=0.0), axis=0)
    if MOVE:
        moving = tl.load(moving_at + c, mask=c < neurons, other=0.0)
        total = tl.load(sum_at + c, mask=c < neurons, other=0.0) - tl.load(lr_at) * moving * total
    tl.store(sum_at + c, total, mask=c < neurons)


def activate(z: Tensor, bias: Tensor, draw: Draw | None, pool: bool, by_neuron: bool = False) -> tuple[Tensor, Tensor]:
    """ReLU of z + bias, dropout, and the maximum over 2x2 places; z is (images, height, width, neurons). Also the pools' winners.

    With `by_neuron` a neuron's places are adjacent in memory.
    """
    n, height, width, neurons = z.shape
    out_height, out_width = (height // 2, width // 2) if pool else (height, width)
    h = z.new_empty(n, out_height, out_width, neurons)
    if by_neuron:
        h = h.view(n, neurons, out_height, out_width).permute(0, 2, 3, 1)
    winner = torch.empty_like(h, dtype=torch.int8) if pool else h
    rows = n * out_height * out_width
    limit, scale = (0, 1.0) if draw is None else (round(draw.rate * 65536), 1 / (1 - draw.rate))
    key, samples, numbers = (bias, bias, bias) if draw is None else (draw.key, draw.samples, draw.neurons)
    tile = _tile(neurons)
    _activate[(triton.cdiv(rows, ROWS), triton.cdiv(neurons, tile))](
        z, bias, h, winner, key, samples, numbers, rows, neurons, height, width, out_height, out_width, limit, scale,
        *_steps(h), pool, draw is not None, NO_WINNER, ROWS, tile,
    )  # fmt: skip
    return h, winner


def deactivate(
    above: Tensor, saved: Tensor, grad_mask: Tensor | None, scale: float, pool: bool, shape: torch.Size, move: Move | None = None
) -> tuple[Tensor, Tensor | None]:
    """The gradient of z, from the gradient of the activation and the result of `activate`: the winners of the pool, or h itself.

    Also the bias's gradient in parts, to be added up; None if `move` is given and there is only one part: the bias is then updated.
    """
    _, height, width, neurons = shape
    n, out_height, out_width, _ = above.shape
    if above.stride() != saved.stride():
        above = torch.empty_like(saved, dtype=above.dtype).copy_(above)
    uncovered = pool and (height % 2 or width % 2)  # the last row or column is in no pool
    below = above.new_zeros(shape) if uncovered else above.new_empty(shape)
    rows = n * out_height * out_width
    tile = _tile(neurons)
    tiles = triton.cdiv(rows, ROWS_BACK * PARTIAL_SUMS)
    parts = triton.cdiv(rows, ROWS_BACK * tiles)
    partial = torch.empty(parts, neurons, dtype=torch.float32, device=above.device) if move is None or parts > 1 else None
    bias, moving, lr = (below, below, below) if partial is not None or move is None else (move.bias, move.moving, move.lr)
    _deactivate[(parts, triton.cdiv(neurons, tile))](
        above, saved, saved if grad_mask is None else grad_mask, below, below if partial is None else partial, bias, moving, lr,
        rows, neurons, height, width,
        out_height, out_width, scale, *_steps(saved), tiles, pool, grad_mask is not None, partial is None, NO_WINNER, ROWS_BACK, tile,
    )  # fmt: skip
    return below, partial


def _tile(neurons: int) -> int:
    """How many neurons a program handles."""
    return NEURONS if neurons > NEURONS // 2 else max(16, 1 << (neurons - 1).bit_length())


def _steps(h: Tensor) -> tuple[int, int, int]:
    """The strides in memory of images, places and neurons."""
    to_image, _, to_place, to_neuron = h.stride()
    return to_image, to_place, to_neuron


def add_up(parts: Tensor) -> Tensor:
    """The sums of the columns."""
    total = torch.empty(parts.shape[1], dtype=torch.float32, device=parts.device)
    _add_up_columns(parts, total, total, total, False)
    return total


def move_bias(move: Move, parts: Tensor) -> None:
    """b <- b - lr g where a bias moves, in place, from the parts of its gradient."""
    _add_up_columns(parts.contiguous(), move.bias, move.moving, move.lr, True)


def _add_up_columns(parts: Tensor, total: Tensor, moving: Tensor, lr: Tensor, move: bool) -> None:
    count, neurons = parts.shape
    _add_up[(triton.cdiv(neurons, 16),)](parts, total, moving, count, neurons, lr, move, triton.next_power_of_2(count), 16)
