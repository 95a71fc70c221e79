"""Fused element-wise work for CUDA, in Triton: where a chain of small kernels would read the same numbers again and again.

Activations lie channels last: (images, height, width, neurons), with height = width = 1 in a dense layer; weights lie as
(outputs, block, inputs), so that a product reads them in the order of the activations. Every sum is taken in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of PyTorch brings no Triton
    triton = None

ROWS, NEURONS = 64, 64  # of a tile of activations
PARTIAL_SUMS = 512  # at most, of a neuron's gradients, before they are added up
BLOCK, WEIGHTS = 4, 512  # of a tile of weights: of each connection, and altogether
NO_WINNER = 4  # of a pool in which nothing was positive


def available(device: torch.device) -> bool:
    """Whether the kernels can run there."""
    return triton is not None and device.type == "cuda"


@dataclass(frozen=True)
class Draw:
    """What decides dropout: the epoch's key (on the device, so that a captured step can be given another), the images, the neurons."""

    key: Tensor  # (2,) int32
    samples: Tensor  # (images,) int32
    neurons: Tensor  # (neurons,) int32
    rate: float


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _mix(x):  # type: ignore[no-untyped-def]
        """randomness.mix, on unsigned integers."""
        x ^= x >> 16
        x *= 0x7FEB352D
        x ^= x >> 15
        x *= 0x846CA68B
        x ^= x >> 16
        return x

    @triton.jit  # type: ignore[untyped-decorator]
    def _activate(  # type: ignore[no-untyped-def]
        z_at, bias_at, h_at, winner_at, key_at, samples_at, neurons_at, rows, neurons, height, width, out_height, out_width, limit, scale,
        POOL: tl.constexpr, DROPOUT: tl.constexpr, NO_WINNER: tl.constexpr, ROWS: tl.constexpr, NEURONS: tl.constexpr,
    ):  # fmt: skip
        r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        c = tl.program_id(1) * NEURONS + tl.arange(0, NEURONS)
        there = (r < rows)[:, None] & (c < neurons)[None, :]
        image = r // (out_height * out_width)
        place = r % (out_height * out_width)
        bias = tl.load(bias_at + c, mask=c < neurons, other=0.0)
        if DROPOUT:
            sample = tl.load(samples_at + image, mask=r < rows, other=0).to(tl.uint32, bitcast=True)
            first = tl.load(key_at).to(tl.uint32, bitcast=True)
            second = tl.load(key_at + 1).to(tl.uint32, bitcast=True)
            base = _mix(_mix(sample ^ first) ^ second)
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
            value = tl.load(z_at + at, mask=there, other=0.0).to(tl.float32) + bias[None, :]
            if DROPOUT:
                position = y * width + x
                word = (number[None, :] * words + (position // 2)[:, None]).to(tl.uint32, bitcast=True)
                bits = _mix(base[:, None] ^ (word * 0x9E3779B9))
                half = tl.where((position % 2)[:, None] == 1, bits >> 16, bits & 0xFFFF).to(tl.int32)
                value = tl.where((half ^ 0x8000) >= limit, value * scale, 0.0)
            better = (value > best) | (value != value)  # what is not a number must not be lost
            best = tl.where(better, value, best)
            winner = tl.where(better, k, winner)
        out = r.to(tl.int64)[:, None] * neurons + c[None, :]
        tl.store(h_at + out, best, mask=there)
        if POOL:
            tl.store(winner_at + out, winner.to(tl.int8), mask=there)

    @triton.jit  # type: ignore[untyped-decorator]
    def _deactivate(  # type: ignore[no-untyped-def]
        above_at, saved_at, passes_at, below_at, partial_at, rows, neurons, height, width, out_height, out_width, scale,
        tiles: tl.constexpr, POOL: tl.constexpr, CUT: tl.constexpr, NO_WINNER: tl.constexpr, ROWS: tl.constexpr, NEURONS: tl.constexpr,
    ):  # fmt: skip
        c = tl.program_id(1) * NEURONS + tl.arange(0, NEURONS)
        if CUT:
            scale = scale * tl.load(passes_at + c, mask=c < neurons, other=0.0).to(tl.float32)[None, :]
        total = tl.zeros((NEURONS,), dtype=tl.float32)
        for tile in range(tiles):
            r = (tl.program_id(0) * tiles + tile) * ROWS + tl.arange(0, ROWS)
            there = (r < rows)[:, None] & (c < neurons)[None, :]
            out = r.to(tl.int64)[:, None] * neurons + c[None, :]
            gradient = tl.load(above_at + out, mask=there, other=0.0).to(tl.float32) * scale
            if POOL:
                winner = tl.load(saved_at + out, mask=there, other=NO_WINNER)
                gradient = tl.where(winner < NO_WINNER, gradient, 0.0)
                image = r // (out_height * out_width)
                place = r % (out_height * out_width)
                for k in tl.static_range(4):
                    y = (place // out_width) * 2 + k // 2
                    x = (place % out_width) * 2 + k % 2
                    at = ((image * height + y) * width + x).to(tl.int64)[:, None] * neurons + c[None, :]
                    tl.store(below_at + at, tl.where(winner == k, gradient, 0.0), mask=there)
            else:
                h = tl.load(saved_at + out, mask=there, other=0.0)
                gradient = tl.where(h > 0, gradient, 0.0)
                tl.store(below_at + out, gradient, mask=there)
            total += tl.sum(gradient, axis=0)
        tl.store(partial_at + tl.program_id(0) * neurons + c, total, mask=c < neurons)

    @triton.jit  # type: ignore[untyped-decorator]
    def _add_up(  # type: ignore[no-untyped-def]
        parts_at, sum_at, moving_at, parts, neurons, lr, MOVE: tl.constexpr, PARTS: tl.constexpr, NEURONS: tl.constexpr
    ):
        p = tl.arange(0, PARTS)
        c = tl.program_id(0) * NEURONS + tl.arange(0, NEURONS)
        there = (p < parts)[:, None] & (c < neurons)[None, :]
        total = tl.sum(tl.load(parts_at + p[:, None] * neurons + c[None, :], mask=there, other=0.0), axis=0)
        if MOVE:
            moving = tl.load(moving_at + c, mask=c < neurons, other=0.0)
            total = tl.load(sum_at + c, mask=c < neurons, other=0.0) - lr * moving * total
        tl.store(sum_at + c, total, mask=c < neurons)

    @triton.jit  # type: ignore[untyped-decorator]
    def _judge(  # type: ignore[no-untyped-def]
        z_at, bias_at, resting_at, place_at, counted_at, labels_at, step_at, losses_at, right_at, gradient_at, bias_gradient_at,
        images, rows, classes, IMAGES: tl.constexpr, CLASSES: tl.constexpr,
    ):  # fmt: skip
        n = tl.arange(0, IMAGES)
        c = tl.arange(0, CLASSES)
        place = tl.load(place_at + c, mask=c < classes, other=-1)
        own = place >= 0
        counted = tl.load(counted_at + c, mask=c < classes, other=0) > 0
        there = (n < images)[:, None] & own[None, :]
        at = n[:, None] * rows + place[None, :]
        bias = tl.load(bias_at + place, mask=own, other=0.0) + tl.load(resting_at + c, mask=(c < classes) & (place < 0), other=0.0)
        logits = tl.load(z_at + at, mask=there, other=0.0).to(tl.float32) + bias[None, :]
        logits = tl.where(counted[None, :], logits, -float("inf"))
        label = tl.load(labels_at + n, mask=n < images, other=0)
        target = label[:, None] == c[None, :]
        highest = tl.max(logits, axis=1)
        power = tl.exp(logits - highest[:, None])
        total = tl.sum(power, axis=1)
        loss = tl.log(total) + highest - tl.sum(tl.where(target, logits, 0.0), axis=1)
        first = tl.min(tl.where(logits == highest[:, None], c[None, :], CLASSES), axis=1)  # of several that are highest
        gradient = (power / total[:, None] - tl.where(target, 1.0, 0.0)) / images
        gradient = tl.where((n < images)[:, None] & counted[None, :], gradient, 0.0)
        tl.store(gradient_at + at, gradient, mask=there)
        tl.store(bias_gradient_at + place, tl.sum(gradient, axis=0), mask=own)
        step = tl.load(step_at)
        tl.store(losses_at + step, tl.sum(tl.where(n < images, loss, 0.0), axis=0) / images)
        tl.store(right_at + step, tl.sum(((n < images) & (first == label)).to(tl.int32), axis=0))

    @triton.jit  # type: ignore[untyped-decorator]
    def _patches(  # type: ignore[no-untyped-def]
        images_at, patches_at, rows, channels, height, width, out_height, out_width, size, values,
        ROWS: tl.constexpr, VALUES: tl.constexpr,
    ):  # fmt: skip
        r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        v = tl.arange(0, VALUES)
        image = r // (out_height * out_width)
        place = r % (out_height * out_width)
        channel, across = v % channels, v // channels
        y = (place // out_width)[:, None] + (across // size)[None, :]
        x = (place % out_width)[:, None] + (across % size)[None, :]
        inside = (r < rows)[:, None] & (v < values)[None, :]
        at = ((image[:, None] * channels + channel[None, :]) * height + y) * width + x
        value = tl.load(images_at + at, mask=inside, other=0.0)
        tl.store(patches_at + r.to(tl.int64)[:, None] * VALUES + v[None, :], value, mask=(r < rows)[:, None] & (v < VALUES)[None, :])

    @triton.jit  # type: ignore[untyped-decorator]
    def _update(  # type: ignore[no-untyped-def]
        weight_at, shadow_at, gradient_at, more_at, moving_at, connections_at, history_at, scale_at, lr, inputs,
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
            at = (o * block + b)[:, None] * inputs + i[None, :]
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


def activate(z: Tensor, bias: Tensor, draw: Draw | None, pool: bool) -> tuple[Tensor, Tensor]:
    """ReLU of z + bias, dropout, and the maximum over 2x2 places; z is (images, height, width, neurons). Also which place won each pool."""
    n, height, width, neurons = z.shape
    out_height, out_width = (height // 2, width // 2) if pool else (height, width)
    h = z.new_empty(n, out_height, out_width, neurons)
    winner = torch.empty(h.shape if pool else (0,), dtype=torch.int8, device=z.device)
    rows = n * out_height * out_width
    limit, scale = (0, 1.0) if draw is None else (round(draw.rate * 65536), 1 / (1 - draw.rate))
    key, samples, numbers = (bias, bias, bias) if draw is None else (draw.key, draw.samples, draw.neurons)
    tile = min(NEURONS, max(16, triton.next_power_of_2(neurons)))
    _activate[(triton.cdiv(rows, ROWS), triton.cdiv(neurons, tile))](
        z, bias, h, winner, key, samples, numbers, rows, neurons, height, width, out_height, out_width, limit, scale,
        pool, draw is not None, NO_WINNER, ROWS, tile,
    )  # fmt: skip
    return h, winner


def deactivate(above: Tensor, saved: Tensor, passes: Tensor | None, scale: float, pool: bool, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The gradient of z, from that of the activation and what `activate` gave: the winners of the pool, or h itself.

    Also the bias's, in parts that are yet to be added up.
    """
    _, height, width, neurons = shape
    n, out_height, out_width, _ = above.shape
    uncovered = pool and (height % 2 or width % 2)  # the last row or column is in no pool
    below = above.new_zeros(shape) if uncovered else above.new_empty(shape)
    rows = n * out_height * out_width
    tile = min(NEURONS, max(16, triton.next_power_of_2(neurons)))
    tiles = triton.cdiv(rows, ROWS * PARTIAL_SUMS)
    parts = triton.cdiv(rows, ROWS * tiles)
    partial = torch.empty(parts, neurons, dtype=torch.float32, device=above.device)
    _deactivate[(parts, triton.cdiv(neurons, tile))](
        above, saved, saved if passes is None else passes, below, partial, rows, neurons, height, width, out_height, out_width, scale,
        tiles, pool, passes is not None, NO_WINNER, ROWS, tile,
    )  # fmt: skip
    return below, partial


def add_up(parts: Tensor) -> Tensor:
    """The sums of the columns."""
    total = torch.empty(parts.shape[1], dtype=torch.float32, device=parts.device)
    _add_up_columns(parts, total, total, 0.0, False)
    return total


def move_bias(bias: Tensor, parts: Tensor, moving: Tensor, lr: float) -> None:
    """b <- b - lr g where a bias moves, in place, from the parts of its gradient."""
    _add_up_columns(parts, bias, moving, lr, True)


def _add_up_columns(parts: Tensor, total: Tensor, moving: Tensor, lr: float, move: bool) -> None:
    count, neurons = parts.shape
    _add_up[(triton.cdiv(neurons, 16),)](parts, total, moving, count, neurons, lr, move, triton.next_power_of_2(count), 16)


@dataclass(frozen=True)
class Court:
    """What judging a step needs besides its logits: which rows there are, which count, and where losses and right answers are noted."""

    place: Tensor  # of each class among the rows that are there, or -1
    counted: Tensor  # 1 for classes that enter the softmax
    resting: Tensor  # biases of all classes
    step: Tensor  # the number of the step, on the device
    losses: Tensor  # by step
    right: Tensor


def judge(z: Tensor, bias: Tensor, labels: Tensor, court: Court) -> tuple[Tensor, Tensor]:
    """Cross-entropy of z + bias and how many are right, noted for the step; the gradients of z and of the bias."""
    gradient, bias_gradient = torch.empty_like(z), torch.empty_like(bias)
    images, rows = z.shape
    classes = len(court.place)
    _judge[(1,)](
        z, bias, court.resting, court.place, court.counted, labels, court.step, court.losses, court.right, gradient, bias_gradient,
        images, rows, classes, triton.next_power_of_2(images), max(16, triton.next_power_of_2(classes)),
    )  # fmt: skip
    return gradient, bias_gradient


def patches(images: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """What each place of a convolution sees, as rows of a matrix in the order (row, column, channel), padded with zeros for the product."""
    n, channels, height, width = images.shape
    out_height, out_width = height - size + 1, width - size + 1
    rows, values = n * out_height * out_width, size * size * channels
    padded = max(16, triton.next_power_of_2(values))
    matrix = torch.empty(rows, padded, dtype=dtype, device=images.device)
    _patches[(triton.cdiv(rows, ROWS),)](
        images.contiguous(), matrix, rows, channels, height, width, out_height, out_width, size, values, ROWS, padded
    )
    return matrix


def update(
    weight: Tensor, shadow: Tensor, gradient: Tensor, more: Tensor | None, moving: Tensor, lr: float, scale: Tensor | None,
    importance: tuple[Tensor, Tensor] | None,
) -> None:  # fmt: skip
    """w <- w - lr g wherever something moves, in place, the shadow too; and, in one pass, its importance.

    All are (outputs, block, inputs); `moving` and the importances may be (outputs, 1, inputs). `importance` is the running importance of
    the connections, and the sum of it over the steps.
    """
    outputs, block, inputs = weight.shape
    height = min(BLOCK, triton.next_power_of_2(block))
    tile = min(WEIGHTS // height, max(16, triton.next_power_of_2(inputs)))
    connections, history = (weight, weight) if importance is None else importance
    _update[(outputs, triton.cdiv(inputs, tile))](
        weight, shadow, gradient, weight if more is None else more, moving, connections, history, weight if scale is None else scale,
        lr, inputs, block, more is not None, moving.shape[1] == block and block > 1, scale is not None, importance is not None,
        height, tile,
    )  # fmt: skip
