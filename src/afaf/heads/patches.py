"""Features that need no training: filters that are whitened patches of the first task's images (Coates and Ng, 2012).

An image's features are each filter's positive and negative responses in each quarter of the image.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.encoders.patches import QUARTERS, answers
from afaf.training.task_data import TaskData

IMAGES, PATCHES_EACH = 2000, 10  # used for the covariance of patches
SMOOTHING = 0.01  # added to the covariance, in units of its mean variance: directions without content are not amplified


def whitened_filters(data: TaskData, count: int, side: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` filters (count, channels, side, side) and their biases, from un-augmented images of the task's data alone.

    A filter's response to a patch p is u' Z (p - mean): Z whitens patches (ZCA), and u is a whitened patch of unit length.
    """
    seen = _random_patches(data, IMAGES, PATCHES_EACH, side, draw)
    mean = seen.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(seen.T))
    whiten = vectors @ torch.diag((values.clamp(min=0) + SMOOTHING * values.mean() + 1e-12).rsqrt()) @ vectors.T
    chosen = F.normalize((_random_patches(data, count, 1, side, draw) - mean) @ whiten)
    filters = chosen @ whiten
    weight = filters.reshape(count, -1, side, side).to(data.device, data.dtype)
    return weight, -(filters @ mean).to(data.device, data.dtype)


def patch_features(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(n, 2 x filters x 4): the square roots of the filters' responses, scaled to length 1 for each image."""
    return F.normalize(answers(x, weight, bias).sqrt())


def feature_count(filters: int) -> int:
    return 2 * filters * QUARTERS**2


def _random_patches(data: TaskData, images: int, each: int, side: int, draw: torch.Generator) -> Tensor:
    """(images x each, channels x side x side) in float64, on the CPU: `each` patches of each of some images, drawn with replacement."""
    x = data.batch(torch.randint(len(data), (images,), generator=draw).to(data.device))[0].cpu().double()
    n = images * each
    at = torch.arange(images).repeat_interleave(each)[:, None, None, None]
    rows, columns = (torch.randint(size - side + 1, (n, 1), generator=draw) + torch.arange(side) for size in x.shape[2:])
    channels = torch.arange(x.shape[1])[None, :, None, None]
    return x[at, channels, rows[:, None, :, None], columns[:, None, None, :]].flatten(1)
