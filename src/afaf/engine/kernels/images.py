"""What the first layer sees: images, cropped and flipped, and the patches of them that a convolution multiplies."""

from __future__ import annotations

import torch
from torch import Tensor

from afaf.engine.kernels.language import jit, mix, tl, triton
from afaf.learning.feed import PAD, Feed, Moment

ROWS = 64  # of a tile of patches
VALUES = 1024  # of a tile of an image


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
    PAD: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    number = tl.load(samples_at + n)
    sample = number.to(tl.int32).to(tl.uint32, bitcast=True)
    channel, place = v // (height * width), v % (height * width)
    y = place // width + _below(keys_at, sample, 2 * PAD + 1) - PAD
    x = place % width
    x = tl.where(_below(keys_at + 4, sample, 2) == 1, width - 1 - x, x) + _below(keys_at + 2, sample, 2 * PAD + 1) - PAD
    y = height - 1 - tl.abs(height - 1 - tl.abs(y))  # mirrored at the border
    x = width - 1 - tl.abs(width - 1 - tl.abs(x))
    there = v < values
    pixel = tl.load(images_at + number.to(tl.int64) * to_image + channel * to_channel + y * to_row + x * to_column, mask=there, other=0)
    mean, std = tl.load(mean_at + channel, mask=there, other=0.0), tl.load(std_at + channel, mask=there, other=1.0)
    tl.store(crops_at + n * values + v, (pixel.to(tl.float32) - mean) / std, mask=there)


@jit
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


def can_crop(feed: Feed) -> bool:
    """Whether `crops` knows how: images in the device's memory, augmented, all with the same mean and spread of each channel."""
    return (
        feed.images.dim() == 4
        and feed.images.device == feed.device
        and feed.augments
        and feed.mean.shape[:2] == (1, feed.images.shape[1])
        and feed.dtype == torch.float32
    )


def crops(feed: Feed, samples: Tensor, moment: Moment, dtype: torch.dtype) -> Tensor:
    """The images that feed.batch gives at this moment."""
    keys = [half for name in ("crop rows", "crop columns", "flip") for half in moment.key(name)]
    on_device = torch.tensor(keys, dtype=torch.int32).to(samples.device, non_blocking=True)
    _, channels, height, width = feed.images.shape
    values = channels * height * width
    cropped = torch.empty(len(samples), channels, height, width, dtype=dtype, device=samples.device)
    _crops[(len(samples), triton.cdiv(values, VALUES))](
        feed.images, samples, on_device, feed.mean, feed.std, cropped, values, height, width, *feed.images.stride(), PAD, VALUES
    )
    return cropped if feed.channels == channels else cropped.expand(-1, feed.channels or channels, -1, -1)
