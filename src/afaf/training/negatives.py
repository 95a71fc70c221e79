"""Images of none of a task's classes, made from the task's own images: a task with a single class learns to tell its class from them.

Each keeps all or most pixels of an image, but not its content. The changes are drawn by (seed, task), in the order of the images.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from afaf.randomness import generator

PIECES = 4  # an image is cut into at most 4 x 4 pieces


def made_negatives(images: NDArray[Any], seed: int, task: int) -> NDArray[Any]:
    """One negative made from each image (n, h, w, c) or vector (n, features), of the same type."""
    draw = np.random.default_rng(int(torch.randint(1 << 62, (), generator=generator(seed, "negatives", task))))
    if images.ndim == 2:
        return _features_shuffled(images, draw)
    kinds = (_pieces_shuffled, _turned, _halves_swapped, _mixed)
    made = np.empty_like(images)
    for kind, index in zip(kinds, np.array_split(draw.permutation(len(images)), len(kinds)), strict=True):
        if len(index):
            made[index] = kind(images[index], draw)
    return made


def _features_shuffled(vectors: NDArray[Any], draw: np.random.Generator) -> NDArray[Any]:
    """Permute each feature over the vectors, and add noise with the vectors' standard deviation."""
    spread = vectors.std() if len(vectors) > 1 else 0.0
    dealt = draw.permuted(vectors, axis=0)
    made = dealt + draw.normal(0, 1, vectors.shape) * (spread + 1e-6)
    return (made.round().clip(0, 255) if vectors.dtype == np.uint8 else made).astype(vectors.dtype)


def _pieces_shuffled(images: NDArray[Any], draw: np.random.Generator) -> NDArray[Any]:
    """Permute the pieces of each image; if a size cannot be divided evenly, a border stays in place."""
    made = images.copy()
    height, width = images.shape[1] // PIECES, images.shape[2] // PIECES
    if not height or not width:
        return made[:, ::-1, ::-1]
    for image, source in zip(made, images, strict=True):
        for to, fro in enumerate(draw.permutation(PIECES**2)):
            (r, c), (r0, c0) = divmod(to, PIECES), divmod(int(fro), PIECES)
            image[r * height : (r + 1) * height, c * width : (c + 1) * width] = source[
                r0 * height : (r0 + 1) * height, c0 * width : (c0 + 1) * width
            ]
    return made


def _turned(images: NDArray[Any], draw: np.random.Generator) -> NDArray[Any]:
    """Rotate by 90, 180 or 270 degrees; an image that is not square, by 180."""
    square = images.shape[1] == images.shape[2]
    turns = draw.integers(1, 4, len(images)) if square else np.full(len(images), 2)
    return np.stack([np.rot90(image, int(turn)) for image, turn in zip(images, turns, strict=True)])


def _halves_swapped(images: NDArray[Any], draw: np.random.Generator) -> NDArray[Any]:
    """Roll by a third to two thirds of its height and width."""
    height, width = images.shape[1:3]
    down, right = (draw.integers(max(1, size // 3), max(2, size - size // 3 + 1), len(images)) for size in (height, width))
    return np.stack([np.roll(image, (int(d), int(r)), (0, 1)) for image, d, r in zip(images, down, right, strict=True)])


def _mixed(images: NDArray[Any], draw: np.random.Generator) -> NDArray[Any]:
    """The mean of an image and another one, rotated by 180 degrees."""
    other = images[draw.permutation(len(images))][:, ::-1, ::-1]
    return ((images.astype(np.float32) + other.astype(np.float32)) / 2).astype(images.dtype)
