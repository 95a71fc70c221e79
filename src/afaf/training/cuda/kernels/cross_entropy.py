"""Cross-entropy, the number of right answers, the gradient of the logits and the update of their biases in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.training.cuda.kernels.language import jit, tl, triton


@dataclass(frozen=True)
class LossBuffers:
    """Where the fused cross-entropy reads classes and biases, and where it stores losses and right answers, by step."""

    place: Tensor  # of each class among the kept rows, or -1
    counted: Tensor  # 1 for classes that enter the softmax
    resting: Tensor  # biases of all classes
    step: Tensor  # the number of the step, on the device
    losses: Tensor  # by step
    right: Tensor
    moving: Tensor | None = None  # 1 for biases to be updated at once
    lr: Tensor | None = None  # of these biases


@jit
def _fused_cross_entropy(  # type: ignore[no-untyped-def]
    z_at, bias_at, resting_at, place_at, counted_at, labels_at, step_at, losses_at, right_at, gradient_at, bias_gradient_at, moving_at,
    lr_at, images, rows, classes, MOVE: tl.constexpr, IMAGES: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    n = tl.arange(0, IMAGES)
    c = tl.arange(0, CLASSES)
    place = tl.load(place_at + c, mask=c < classes, other=-1)
    own = place >= 0
    counted = tl.load(counted_at + c, mask=c < classes, other=0) > 0
    inside = (n < images)[:, None] & own[None, :]
    at = n[:, None] * rows + place[None, :]
    bias = tl.load(bias_at + place, mask=own, other=0.0) + tl.load(resting_at + c, mask=(c < classes) & (place < 0), other=0.0)
    logits = tl.load(z_at + at, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
    logits = tl.where(counted[None, :], logits, -float("inf"))
    label = tl.load(labels_at + n, mask=n < images, other=0)
    target = label[:, None] == c[None, :]
    highest = tl.max(logits, axis=1)
    power = tl.exp(logits - highest[:, None])
    total = tl.sum(power, axis=1)
    loss = tl.log(total) + highest - tl.sum(tl.where(target, logits, 0.0), axis=1)
    first = tl.min(tl.where(logits == highest[:, None], c[None, :], CLASSES), axis=1)  # the first of several highest
    gradient = (power / total[:, None] - tl.where(target, 1.0, 0.0)) / images
    gradient = tl.where((n < images)[:, None] & counted[None, :], gradient, 0.0)
    tl.store(gradient_at + at, gradient, mask=inside)
    if MOVE:
        moved = tl.load(lr_at) * tl.load(moving_at + place, mask=own, other=0.0) * tl.sum(gradient, axis=0)
        tl.store(bias_at + place, tl.load(bias_at + place, mask=own, other=0.0) - moved, mask=own)
    else:
        tl.store(bias_gradient_at + place, tl.sum(gradient, axis=0), mask=own)
    step = tl.load(step_at)
    tl.store(losses_at + step, tl.sum(tl.where(n < images, loss, 0.0), axis=0) / images)
    tl.store(right_at + step, tl.sum(((n < images) & (first == label)).to(tl.int32), axis=0))


def tile_of_logits(images: int, classes: int) -> int:
    """Size of the one tile of logits that the kernel loads: powers of two, as Triton demands."""
    return int((1 << (images - 1).bit_length()) * max(16, 1 << (classes - 1).bit_length()))


def fused_cross_entropy(z: Tensor, bias: Tensor, labels: Tensor, buffers: LossBuffers) -> tuple[Tensor, Tensor | None]:
    """Store cross-entropy of z + bias and right answers for the step; return the gradients of z and, unless it was updated, of bias."""
    gradient = torch.empty_like(z)
    bias_gradient = torch.empty_like(bias) if buffers.moving is None else None
    images, rows = z.shape
    classes = len(buffers.place)
    _fused_cross_entropy[(1,)](
        z, bias, buffers.resting, buffers.place, buffers.counted, labels, buffers.step, buffers.losses, buffers.right, gradient,
        bias if bias_gradient is None else bias_gradient, bias if buffers.moving is None else buffers.moving,
        bias if buffers.lr is None else buffers.lr,
        images, rows, classes, buffers.moving is not None, triton.next_power_of_2(images), max(16, triton.next_power_of_2(classes)),
    )  # fmt: skip
    return gradient, bias_gradient
