"""Kernels for the first layer: crops and flips of images, and a convolution that reads each patch in place."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from afaf.training.cuda.kernels.activation import add_up
from afaf.training.cuda.kernels.language import jit, mix, rounding, tl, triton
from afaf.training.task_data import PAD, RngScope, TaskData

PIXELS = 1024  # of a tile of images
ROWS = 128  # of a tile of patches
PARTIAL_SUMS = 264  # at most, of the first layer's gradients
MOST_VALUES, MOST_MAPS = 63, 128  # limits of one tile: values of a patch, maps computed from it


@jit
def _below(key_at, sample, below):  # type: ignore[no-untyped-def]
    """randomness.integers_at"""
    first = tl.load(key_at).to(tl.uint32, bitcast=True)
    second = tl.load(key_at + 1).to(tl.uint32, bitcast=True)
    bits = mix(mix(sample ^ first) ^ second)
    return ((bits >> 8).to(tl.float32) * 5.9604644775390625e-08 * below).to(tl.int32)


@jit
def _crops(  # type: ignore[no-untyped-def]
    images_at, samples_at, keys_at, mean_at, std_at, crops_at, values, height, width, to_image, to_channel, to_row, to_column,
    PAD: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    number = tl.load(samples_at + n)
    sample = number.to(tl.int32).to(tl.uint32, bitcast=True)
    channel, place = v // (height * width), v % (height * width)
    y = place // width + _below(keys_at, sample, 2 * PAD + 1) - PAD
    x = place % width
    x = tl.where(_below(keys_at + 4, sample, 2) == 1, width - 1 - x, x) + _below(keys_at + 2, sample, 2 * PAD + 1) - PAD
    y = height - 1 - tl.abs(height - 1 - tl.abs(y))  # mirrored at the border
    x = width - 1 - tl.abs(width - 1 - tl.abs(x))
    inside = v < values
    pixel = tl.load(images_at + number.to(tl.int64) * to_image + channel * to_channel + y * to_row + x * to_column, mask=inside, other=0)
    mean, std = tl.load(mean_at + channel, mask=inside, other=0.0), tl.load(std_at + channel, mask=inside, other=1.0)
    tl.store(crops_at + n * values + v, (pixel.to(tl.float32) - mean) / std, mask=inside)


@jit
def _fetch(  # type: ignore[no-untyped-def]
    cursor_at, features_at, labels_at, samples_at, h_at, batch_labels_at, batch_samples_at, values, images,
    IMAGES: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    first = tl.load(cursor_at)
    v = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    inside = v < images * values
    tl.store(h_at + v, tl.load(features_at + first * values + v, mask=inside), mask=inside)
    if tl.program_id(0) == 0:
        n = tl.arange(0, IMAGES)
        tl.store(batch_labels_at + n, tl.load(labels_at + first + n, mask=n < images), mask=n < images)
        tl.store(batch_samples_at + n, tl.load(samples_at + first + n, mask=n < images), mask=n < images)


@jit
def _patches(images_at, r, v, rows, values, channels, height, width, out_height, out_width, size):  # type: ignore[no-untyped-def]
    """The patch at each place of a convolution, as rows of a matrix in the order (row, column, channel); then ones, for the bias."""
    image = r // (out_height * out_width)
    place = r % (out_height * out_width)
    channel, across = v % channels, v // channels
    y = (place // out_width)[:, None] + (across // size)[None, :]
    x = (place % out_width)[:, None] + (across % size)[None, :]
    at = ((image[:, None] * channels + channel[None, :]) * height + y) * width + x
    inside = (r < rows)[:, None] & (v < values)[None, :]
    return tl.where((v == values)[None, :], 1.0, tl.load(images_at + at, mask=inside, other=0.0).to(tl.float32))


@jit
def _look(  # type: ignore[no-untyped-def]
    images_at, weight_at, bias_at, h_at, rows, neurons, values, channels, height, width, out_height, out_width, size,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, NEURONS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, NEURONS)
    v = tl.arange(0, VALUES)
    seen = _patches(images_at, r, v, rows, values, channels, height, width, out_height, out_width, size)
    weight = tl.load(weight_at + c[None, :] * values + v[:, None], mask=(v < values)[:, None] & (c < neurons)[None, :], other=0.0)
    z = tl.dot(seen.to(weight.dtype), weight, input_precision=PRECISION) + tl.load(bias_at + c, mask=c < neurons, other=0.0)[None, :]
    h = tl.where((z > 0) | (z != z), z, 0.0)  # NaN must not be lost
    tl.store(h_at + r.to(tl.int64)[:, None] * neurons + c[None, :], h, mask=(r < rows)[:, None] & (c < neurons)[None, :])


@jit
def _look_back(  # type: ignore[no-untyped-def]
    images_at, above_at, h_at, passes_at, parts_at, rows, neurons, values, channels, height, width, out_height, out_width, size,
    tiles: tl.constexpr, CUT: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, NEURONS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, NEURONS)
    v = tl.arange(0, VALUES)
    total = tl.zeros((NEURONS, VALUES), dtype=tl.float32)
    for tile in range(tiles):
        r = (tl.program_id(0) * tiles + tile) * ROWS + tl.arange(0, ROWS)
        inside = (r < rows)[None, :] & (c < neurons)[:, None]
        at = r.to(tl.int64)[None, :] * neurons + c[:, None]
        above = tl.load(above_at + at, mask=inside, other=0.0)
        above = tl.where(tl.load(h_at + at, mask=inside, other=0.0) > 0, above, 0.0)
        seen = _patches(images_at, r, v, rows, values, channels, height, width, out_height, out_width, size)
        total = tl.dot(above, seen.to(above.dtype), total, input_precision=PRECISION)
    if CUT:
        total *= tl.load(passes_at + c, mask=c < neurons, other=0.0).to(tl.float32)[:, None]
    at = (tl.program_id(0) * neurons + c)[:, None] * VALUES + v[None, :]
    tl.store(parts_at + at, total, mask=(c < neurons)[:, None])


def can_crop(data: TaskData) -> bool:
    """Whether `crops` supports the data: images in device memory, cropped, with one mean and standard deviation per channel, and large
    enough to be reflected once."""
    return (
        data.images.dim() == 4
        and data.rotations == data.views == 1
        and min(data.images.shape[2:]) > PAD
        and data.images.device.type == data.device.type
        and data.crops
        and not data.resizes
        and data.mean.shape[:2] == (1, data.images.shape[1])
        and data.dtype == torch.float32
    )


def crops(data: TaskData, samples: Tensor, scope: RngScope, dtype: torch.dtype) -> Tensor:
    """The images that `data.batch` returns, augmented."""
    keys = [half for name in ("crop rows", "crop columns", "flip") for half in scope.key(name)]
    on_device = torch.tensor(keys, dtype=torch.int32).to(samples.device, non_blocking=True)
    _, channels, height, width = data.images.shape
    values = channels * height * width
    cropped = torch.empty(len(samples), channels, height, width, dtype=dtype, device=samples.device)
    _crops[(len(samples), triton.cdiv(values, PIXELS))](
        data.images, samples, on_device, data.mean, data.std, cropped, values, height, width, *data.images.stride(), PAD, PIXELS
    )
    return cropped if data.channels == channels else cropped.expand(-1, data.channels or channels, -1, -1)


def fetch(cursor: Tensor, images: int, features: Tensor, labels: Tensor, samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next `images` rows of each, from the cursor (on the device) on."""
    h, batch_labels, batch_samples = (torch.empty_like(tensor[:images]) for tensor in (features, labels, samples))
    values = h[0].numel()
    _fetch[(triton.cdiv(images * values, PIXELS),)](
        cursor, features, labels, samples, h, batch_labels, batch_samples, values, images, triton.next_power_of_2(images), PIXELS
    )
    return h, batch_labels, batch_samples


def can_fuse_first_conv(images: Tensor, weight: Tensor) -> bool:
    """Whether a patch and the maps made from it fit into a tile."""
    maps, channels, block = weight.shape
    return images.dim() == 4 and block * channels <= MOST_VALUES and maps <= MOST_MAPS


def first_conv(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU of a convolution of images (n, channels, height, width), as (n, height, width, maps). Weights have adjacent inputs."""
    shape, size = _look_shape(images, weight)
    h = torch.empty(len(images), *shape[6:8], len(weight), dtype=weight.dtype, device=images.device)
    tile, values = _tiles(weight)
    _look[(triton.cdiv(shape[0], ROWS),)](images.contiguous(), weight, bias, h, *shape, size, rounding(), ROWS, tile, values)
    return h


def first_conv_backward(images: Tensor, weight: Tensor, above: Tensor, h: Tensor, grad_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of the weights (maps, channels, block) and biases, in single precision, from that of `first_conv`'s result."""
    shape, size = _look_shape(images, weight)
    maps, channels, block = weight.shape
    tile, values = _tiles(weight)
    tiles = triton.cdiv(shape[0], ROWS * PARTIAL_SUMS)
    count = triton.cdiv(shape[0], ROWS * tiles)
    parts = torch.empty(count, maps * values, dtype=torch.float32, device=images.device)
    _look_back[(count,)](
        images.contiguous(), above.contiguous(), h, h if grad_mask is None else grad_mask, parts, *shape, size,
        tiles, grad_mask is not None, rounding(), ROWS, tile, values,
    )  # fmt: skip
    gradient = add_up(parts).view(maps, values)
    weights = gradient[:, : block * channels].unflatten(1, (block, channels)).permute(0, 2, 1)
    return weights, gradient[:, block * channels]


def _look_shape(images: Tensor, weight: Tensor) -> tuple[tuple[int, ...], int]:
    """(rows, maps, values, channels, height, width, height and width of the maps), and the kernel's size."""
    n, channels, height, width = images.shape
    maps, _, block = weight.shape
    size = math.isqrt(block)
    out_height, out_width = height - size + 1, width - size + 1
    return (n * out_height * out_width, maps, block * channels, channels, height, width, out_height, out_width), size


def _tiles(weight: Tensor) -> tuple[int, int]:
    maps, channels, block = weight.shape
    return max(16, triton.next_power_of_2(maps)), max(16, triton.next_power_of_2(block * channels + 1))
