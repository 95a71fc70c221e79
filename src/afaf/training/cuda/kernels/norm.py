"""Bias, batch norm and ReLU of a layer: one pass for the statistics and one for the result, and two for the gradients.

Values are shaped (images, height, width, neurons) and lie so in memory. The number of neurons is a multiple of 8, and kernels get the
number of eights, so that the compiler knows that eight values can be loaded at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.network.ops import EPSILON, MOMENTUM, Norm
from afaf.training.cuda.kernels.language import available, jit, tl, triton

TILE = 4096  # values in a tile
PARTS = 512  # at most, of a neuron's sums
WARPS = 8  # of the kernel of statistics: more loads in flight. The sums of gradients are faster with fewer


@dataclass(frozen=True)
class Normalised:
    """The result, and the numbers its gradients need."""

    h: Tensor
    used: Tensor  # (2, neurons): what was subtracted from the product, and 1 / standard deviation


@jit
def _statistics(z_at, parts_at, rows, eights, tiles: tl.constexpr, ROWS: tl.constexpr, NEURONS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Mean and sum of squared distances to it, of each neuron over a part of the rows.

    Every place of a tile keeps both for the values that it has seen (Welford's updates); they are combined once, at the end.
    """
    neurons = eights * 8
    c = tl.program_id(1) * NEURONS + tl.arange(0, NEURONS)
    first = tl.program_id(0) * tiles * ROWS + tl.arange(0, ROWS)
    mean = tl.zeros((ROWS, NEURONS), dtype=tl.float32)
    squares = tl.zeros((ROWS, NEURONS), dtype=tl.float32)
    seen = 0.0
    for tile in range(tiles):
        r = first + tile * ROWS
        inside = (r < rows)[:, None] & (c < neurons)[None, :]
        z = tl.load(z_at + r.to(tl.int64)[:, None] * neurons + c[None, :], mask=inside, other=0.0).to(tl.float32)
        seen += 1.0
        off = tl.where(inside, z - mean, 0.0)
        mean += off * (1.0 / seen)
        squares += off * (z - mean)
    count = tl.minimum(tl.maximum((rows - first + ROWS - 1) // ROWS, 0), tiles).to(tl.float32)[:, None]
    mean_of_part = tl.sum(mean * count, axis=0) / tl.maximum(tl.sum(count), 1.0)
    off = mean - mean_of_part[None, :]
    at = parts_at + tl.program_id(0) * 2 * neurons + c
    tl.store(at, mean_of_part, mask=c < neurons)
    tl.store(at + neurons, tl.sum(squares + off * off * count, axis=0), mask=c < neurons)


@jit
def _finish_statistics(  # type: ignore[no-untyped-def]
    parts_at, bias_at, by_batch_at, mean_at, var_at, used_at, rows, parts, rows_of_part, neurons, momentum, epsilon,
    CHOOSE: tl.constexpr, PARTS: tl.constexpr, NEURONS: tl.constexpr,
):  # fmt: skip
    """Combine the parts, update the running statistics, and store the values that neurons are normalised by."""
    p = tl.arange(0, PARTS)
    c = tl.program_id(0) * NEURONS + tl.arange(0, NEURONS)
    inside = (p < parts)[:, None] & (c < neurons)[None, :]
    at = parts_at + p[:, None] * 2 * neurons + c[None, :]
    count = tl.minimum(tl.maximum(rows - p * rows_of_part, 0), rows_of_part).to(tl.float32)[:, None]
    means = tl.load(at, mask=inside, other=0.0)
    mean = tl.sum(means * count, axis=0) / rows
    apart = tl.where(inside, means - mean[None, :], 0.0)
    squares = tl.sum(tl.load(at + neurons, mask=inside, other=0.0) + apart * apart * count, axis=0)
    bias = tl.load(bias_at + c, mask=c < neurons, other=0.0)
    old_mean = tl.load(mean_at + c, mask=c < neurons, other=0.0)
    old_var = tl.load(var_at + c, mask=c < neurons, other=1.0)
    new_mean = old_mean + momentum * (mean + bias - old_mean)
    new_var = old_var + momentum * (squares / (rows - 1) - old_var)
    var = squares / rows
    if CHOOSE:
        by_batch = tl.load(by_batch_at + c, mask=c < neurons, other=0.0) > 0
        mean = tl.where(by_batch, mean, old_mean - bias)
        var = tl.where(by_batch, var, old_var)
        new_mean = tl.where(by_batch, new_mean, old_mean)
        new_var = tl.where(by_batch, new_var, old_var)
    tl.store(mean_at + c, new_mean, mask=c < neurons)
    tl.store(var_at + c, new_var, mask=c < neurons)
    tl.store(used_at + c, mean, mask=c < neurons)
    tl.store(used_at + neurons + c, 1.0 / tl.sqrt(var + epsilon), mask=c < neurons)


@jit
def _normalise(  # type: ignore[no-untyped-def]
    z_at, used_at, gain_at, shift_at, h_at, rows, eights, RELU: tl.constexpr, ROWS: tl.constexpr, NEURONS: tl.constexpr
):
    neurons = eights * 8
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * NEURONS + tl.arange(0, NEURONS)
    inside = (r < rows)[:, None] & (c < neurons)[None, :]
    mean = tl.load(used_at + c, mask=c < neurons, other=0.0)
    factor = tl.load(used_at + neurons + c, mask=c < neurons, other=0.0) * tl.load(gain_at + c, mask=c < neurons, other=0.0)
    shift = tl.load(shift_at + c, mask=c < neurons, other=0.0)
    at = r.to(tl.int64)[:, None] * neurons + c[None, :]
    h = (tl.load(z_at + at, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * factor[None, :] + shift[None, :]
    if RELU:
        h = tl.where(h < 0, 0.0, h)  # NaN must not be lost
    tl.store(h_at + at, h, mask=inside)


@jit
def _sums(  # type: ignore[no-untyped-def]
    above_at,
    z_at,
    used_at,
    gain_at,
    shift_at,
    parts_at,
    rows,
    eights,
    tiles: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    NEURONS: tl.constexpr,
):
    """For each neuron, over a part of the rows: the sums of the gradients and of gradients times normalised values."""
    neurons = eights * 8
    c = tl.program_id(1) * NEURONS + tl.arange(0, NEURONS)
    mean = tl.load(used_at + c, mask=c < neurons, other=0.0)
    inverse = tl.load(used_at + neurons + c, mask=c < neurons, other=0.0)
    gain = tl.load(gain_at + c, mask=c < neurons, other=0.0)
    shift = tl.load(shift_at + c, mask=c < neurons, other=0.0)
    plain = tl.zeros((NEURONS,), dtype=tl.float32)
    weighted = tl.zeros((NEURONS,), dtype=tl.float32)
    for tile in range(tiles):
        r = (tl.program_id(0) * tiles + tile) * ROWS + tl.arange(0, ROWS)
        inside = (r < rows)[:, None] & (c < neurons)[None, :]
        at = r.to(tl.int64)[:, None] * neurons + c[None, :]
        gradient = tl.load(above_at + at, mask=inside, other=0.0).to(tl.float32)
        x = (tl.load(z_at + at, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
        if RELU:
            gradient = tl.where(x * gain[None, :] + shift[None, :] > 0, gradient, 0.0)
        plain += tl.sum(gradient, axis=0)
        weighted += tl.sum(gradient * x, axis=0)
    at = parts_at + tl.program_id(0) * 2 * neurons + c
    tl.store(at, plain, mask=c < neurons)
    tl.store(at + neurons, weighted, mask=c < neurons)


@jit
def _finish_sums(  # type: ignore[no-untyped-def]
    parts_at, used_at, gain_at, by_batch_at, passes_at, sums_at, parts, neurons,
    CHOOSE: tl.constexpr, CUT: tl.constexpr, PARTS: tl.constexpr, NEURONS: tl.constexpr,
):  # fmt: skip
    """The gradients of shift, gain and bias, in this order; a bias has none where the batch's mean is subtracted."""
    p = tl.arange(0, PARTS)
    c = tl.program_id(0) * NEURONS + tl.arange(0, NEURONS)
    inside = (p < parts)[:, None] & (c < neurons)[None, :]
    at = parts_at + p[:, None] * 2 * neurons + c[None, :]
    shift = tl.sum(tl.load(at, mask=inside, other=0.0), axis=0)
    tl.store(sums_at + c, shift, mask=c < neurons)
    tl.store(sums_at + neurons + c, tl.sum(tl.load(at + neurons, mask=inside, other=0.0), axis=0), mask=c < neurons)
    bias = tl.zeros((NEURONS,), dtype=tl.float32)
    if CHOOSE:
        factor = tl.load(gain_at + c, mask=c < neurons, other=0.0) * tl.load(used_at + neurons + c, mask=c < neurons, other=0.0)
        bias = tl.where(tl.load(by_batch_at + c, mask=c < neurons, other=0.0) > 0, 0.0, shift * factor)
        if CUT:
            bias *= tl.load(passes_at + c, mask=c < neurons, other=0.0).to(tl.float32)
    tl.store(sums_at + 2 * neurons + c, bias, mask=c < neurons)


@jit
def _below(  # type: ignore[no-untyped-def]
    above_at, z_at, used_at, gain_at, shift_at, sums_at, by_batch_at, passes_at, below_at, rows, eights,
    RELU: tl.constexpr, CHOOSE: tl.constexpr, CUT: tl.constexpr, ROWS: tl.constexpr, NEURONS: tl.constexpr,
):  # fmt: skip
    """The gradient of the product."""
    neurons = eights * 8
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * NEURONS + tl.arange(0, NEURONS)
    inside = (r < rows)[:, None] & (c < neurons)[None, :]
    mean = tl.load(used_at + c, mask=c < neurons, other=0.0)
    inverse = tl.load(used_at + neurons + c, mask=c < neurons, other=0.0)
    gain = tl.load(gain_at + c, mask=c < neurons, other=0.0)
    shift = tl.load(shift_at + c, mask=c < neurons, other=0.0)
    plain = tl.load(sums_at + c, mask=c < neurons, other=0.0) / rows
    weighted = tl.load(sums_at + neurons + c, mask=c < neurons, other=0.0) / rows
    factor = gain * inverse
    if CHOOSE:  # with running statistics, a value does not depend on other images
        by_batch = tl.load(by_batch_at + c, mask=c < neurons, other=0.0)
        plain *= by_batch
        weighted *= by_batch
    if CUT:
        factor *= tl.load(passes_at + c, mask=c < neurons, other=0.0).to(tl.float32)
    at = r.to(tl.int64)[:, None] * neurons + c[None, :]
    gradient = tl.load(above_at + at, mask=inside, other=0.0).to(tl.float32)
    x = (tl.load(z_at + at, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    if RELU:
        gradient = tl.where(x * gain[None, :] + shift[None, :] > 0, gradient, 0.0)
    tl.store(below_at + at, (gradient - plain[None, :] - x * weighted[None, :]) * factor[None, :], mask=inside)


def can_normalise(neurons: int, device: torch.device, dtype: torch.dtype) -> bool:
    return available(device) and neurons % 8 == 0 and dtype != torch.float64


def normalise(z: Tensor, bias: Tensor, norm: Norm, by_batch: Tensor | None, relu: bool) -> Normalised:
    """Batch norm of z + bias and perhaps ReLU. Neurons where `by_batch` is 0 use running statistics; the others update theirs."""
    rows, neurons = z.numel() // z.shape[-1], z.shape[-1]
    tile = _tiling(rows, neurons)
    parts = torch.empty(tile.parts, 2, neurons, dtype=torch.float32, device=z.device)
    used = torch.empty(2, neurons, dtype=torch.float32, device=z.device)
    _statistics[(tile.parts, tile.columns)](z, parts, rows, neurons // 8, tile.in_part, tile.rows, tile.neurons, num_warps=WARPS)
    _finish_statistics[(triton.cdiv(neurons, 16),)](
        parts, bias, bias if by_batch is None else by_batch, norm.mean, norm.var, used, rows, tile.parts, tile.in_part * tile.rows, neurons,
        MOMENTUM, EPSILON, by_batch is not None, triton.next_power_of_2(tile.parts), 16,
    )  # fmt: skip
    h = torch.empty_like(z)
    _normalise[(tile.tiles, tile.columns)](z, used, norm.gain, norm.shift, h, rows, neurons // 8, relu, tile.rows, tile.neurons)
    return Normalised(h, used)


def normalise_backward(
    above: Tensor, z: Tensor, used: Tensor, gain: Tensor, shift: Tensor, by_batch: Tensor | None, grad_mask: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of z, 0 where `grad_mask` is, and those of shift, gain and bias (3, neurons)."""
    rows, neurons = z.numel() // z.shape[-1], z.shape[-1]
    tile = _tiling(rows, neurons)
    parts = torch.empty(tile.parts, 2, neurons, dtype=torch.float32, device=z.device)
    sums = torch.empty(3, neurons, dtype=torch.float32, device=z.device)
    choose, cut = by_batch is not None, grad_mask is not None
    chosen, passes = used if by_batch is None else by_batch, used if grad_mask is None else grad_mask
    _sums[(tile.parts, tile.columns)](
        above, z, used, gain, shift, parts, rows, neurons // 8, tile.in_part, relu, tile.rows, tile.neurons
    )  # fmt: skip
    _finish_sums[(triton.cdiv(neurons, 16),)](
        parts, used, gain, chosen, passes, sums, tile.parts, neurons, choose, cut, triton.next_power_of_2(tile.parts), 16
    )
    below = torch.empty_like(z)
    _below[(tile.tiles, tile.columns)](
        above, z, used, gain, shift, sums, chosen, passes, below, rows, neurons // 8, relu, choose, cut, tile.rows, tile.neurons
    )
    return below, sums


@dataclass(frozen=True)
class _Tiling:
    rows: int  # of a tile
    neurons: int
    columns: int  # tiles beside each other
    tiles: int  # tiles below each other
    in_part: int  # of those, that make one part of a sum

    @property
    def parts(self) -> int:
        return int(triton.cdiv(self.tiles, self.in_part))


def _tiling(rows: int, neurons: int) -> _Tiling:
    wide = min(64, triton.next_power_of_2(neurons))
    tall = TILE // wide
    tiles = triton.cdiv(rows, tall)
    return _Tiling(tall, wide, triton.cdiv(neurons, wide), tiles, triton.cdiv(tiles, PARTS))
