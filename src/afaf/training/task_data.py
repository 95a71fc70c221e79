"""A part of a task's data for an engine: resident on the training device, uint8 if it was uint8, augmented there.

Batches, crops and flips are functions of (seed, task, epoch, image), see `randomness`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from afaf.errors import DataError
from afaf.randomness import generator, integers_at, key
from afaf.streams.tasks import Preparation, Split, StoredImages

PAD = 4  # as usual for CIFAR: pad by reflecting 4 pixels, then crop the original size at random
RESIDENT_BYTES = 8 << 30  # a larger part stays in host memory and is copied batch by batch


@dataclass(frozen=True)
class RngScope:
    """The key of the random draws of one epoch: seed, task, phase and epoch."""

    seed: int
    task: int
    phase: int = 0
    epoch: int = 0

    def key(self, purpose: str, *more: int) -> tuple[int, int]:
        return key(self.seed, purpose, self.task, self.phase, self.epoch, *more)


class TaskData:
    """Images (n, channels, height, width) or vectors (n, features), with their labels (output rows), ready to be cut into batches.

    Several parts may be joined, each with its own preparation. With `rotations` = 4, sample 4 i + v is image i turned v times by 90
    degrees, and its label is v more than the image's; without, a sample is an image. `with_views` gives several crops of each.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Split, Preparation]],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        resident_bytes: int = RESIDENT_BYTES,
        rotations: int = 1,
    ):
        self.device, self.dtype = torch.device(device), dtype
        channels = max(1 if split.images.ndim == 2 else preparation.channels or split.images.shape[-1] for split, preparation in parts)
        same = len({split.images.shape[1:] for split, _ in parts}) == 1
        self.channels = channels if parts[0][0].images.ndim == 4 else None
        size = sum(split.images.nbytes for split, _ in parts)
        at = self.device if size <= resident_bytes else torch.device("cpu")
        self._in_file: Tensor | None = None  # indices of the images in their file, if they are read from one
        file = _one_file(parts) if at.type == "cpu" else None
        if file is not None:
            self._in_file = torch.from_numpy(
                np.concatenate([split.images.index for split, _ in parts if isinstance(split.images, StoredImages)])
            )
            self.images = torch.from_numpy(file).permute(0, 3, 1, 2)
        else:
            stored = _alike([np.asarray(split.images) for split, _ in parts])
            self.images = torch.from_numpy(np.concatenate([_channels_first(part, None if same else channels) for part in stored])).to(at)
        if rotations > 1 and (self.images.dim() != 4 or self.images.shape[2] != self.images.shape[3]):
            raise DataError(f"rotations need square images; these are {tuple(self.images.shape[1:])}: set parts.rotations=false")
        self.rotations, self.views = rotations, 1
        labels = torch.from_numpy(np.concatenate([split.labels for split, _ in parts]))
        self.labels = (labels[:, None] + torch.arange(rotations)).flatten().to(self.device)
        preparations = list(dict.fromkeys(preparation for _, preparation in parts))
        group = np.repeat([preparations.index(preparation) for _, preparation in parts], [len(split) for split, _ in parts])
        self._group = torch.from_numpy(group).to(self.device)
        scale = 255.0 if self.images.dtype == torch.uint8 else 1.0
        self.mean = self._table([p.mean for p in preparations]) * scale
        self.std = self._table([p.std for p in preparations]) * scale
        self._crops_of, self._resizes_of = (
            torch.tensor([p.augment == way for p in preparations], device=self.device) for way in ("crop-flip", "resized-crop-flip")
        )
        self.crops, self.resizes = bool(self._crops_of.any()), bool(self._resizes_of.any())
        self.augments = self.crops or self.resizes

    def _table(self, rows: list[tuple[float, ...]]) -> Tensor:
        """One row of per-channel numbers for each preparation; a single number holds for all channels."""
        width = max(map(len, rows))
        table = torch.tensor([row * (width // len(row)) for row in rows], dtype=self.dtype, device=self.device)
        return table[:, :, None, None] if self.images.dim() == 4 else table

    def with_views(self, views: int) -> TaskData:
        """The same images, each repeated `views` times in a row, each view with its own crop and flip."""
        if views == 1:
            return self
        assert self.views == 1, "views of views"
        data = copy(self)
        data.views, data.labels = views, self.labels.view(-1, self.rotations).repeat_interleave(views, 0).flatten()
        return data

    def __len__(self) -> int:
        return len(self.labels)

    def order(self, scope: RngScope) -> Tensor:
        """The order in which an epoch sees the samples: all rotations and views of an image together."""
        draw, each = generator(scope.seed, "order", scope.task, scope.phase, scope.epoch), self.rotations * self.views
        order = torch.randperm(len(self) // each, generator=draw)
        return (order[:, None] * each + torch.arange(each)).flatten().to(self.device)

    def batch(self, samples: Tensor, scope: RngScope | None = None) -> tuple[Tensor, Tensor]:
        """The samples with these numbers, and their labels; with a scope they are augmented, with draws keyed by scope, image and view."""
        view = samples // self.rotations if self.rotations > 1 else samples
        index = view // self.views if self.views > 1 else view
        x = self._cropped(index, view, scope) if scope and self.crops else self.images[self._places(index)]
        group = self._group[index] if len(self.mean) > 1 else 0
        x = (x.to(self.device).to(self.dtype) - self.mean[group]) / self.std[group]
        if scope and self.resizes:
            x = self._resized(x, index, view, scope)
        if self.channels is not None and x.shape[1] != self.channels:
            x = x.expand(-1, self.channels, -1, -1)
        return (_turned(x, samples % self.rotations) if self.rotations > 1 else x), self.labels[samples]

    def batches(self, size: int = 512, class_id: int | None = None) -> Iterator[Tensor]:
        """All samples, or those of one label, un-augmented and in order."""
        samples = torch.arange(len(self), device=self.device)
        if class_id is not None:
            samples = samples[self.labels == class_id]
        for part in samples.split(size):
            yield self.batch(part)[0]

    def augmented(self, samples: Tensor) -> Tensor:
        """Which of these samples are cropped and flipped while they are learned."""
        index = samples // (self.rotations * self.views)
        return (self._crops_of | self._resizes_of)[self._group[index]]

    def _places(self, index: Tensor) -> Tensor:
        """The indices of these images in `images`."""
        index = index.to(self.images.device)
        return index if self._in_file is None else self._in_file[index]

    def _resized(self, x: Tensor, index: Tensor, view: Tensor, scope: RngScope) -> Tensor:
        """A random square window of half to all of the image's height, enlarged to the image's size, flipped half of the time."""
        resized = self._resizes_of[self._group[index]]
        u = [integers_at(scope.key(name), 1 << 16, view).to(x.dtype) / ((1 << 16) - 1) for name in ("side", "top", "left")]
        side = torch.where(resized, 0.5 + 0.5 * u[0], 1)
        flip = torch.where(resized & integers_at(scope.key("flip"), 2, view).bool(), -1.0, 1.0).to(x.dtype)
        middle = [(1 - side) * (2 * place - 1) for place in u[1:]]  # of the window, where -1 and 1 are the borders of the image
        transform = torch.zeros(len(x), 2, 3, dtype=x.dtype, device=x.device)
        transform[:, 0, 0], transform[:, 0, 2] = side * flip, middle[1]
        transform[:, 1, 1], transform[:, 1, 2] = side, middle[0]
        grid = F.affine_grid(transform, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, padding_mode="border", align_corners=False)

    def _cropped(self, index: Tensor, view: Tensor, scope: RngScope) -> Tensor:
        """A random crop of the reflect-padded image, flipped half of the time: one gather, no padded copy."""
        height, width = self.images.shape[2:]
        augmented = self._crops_of[self._group[index]].to(self.images.device)
        index, view = index.to(self.images.device), view.to(self.images.device)
        shifts = [(integers_at(scope.key(name), 2 * PAD + 1, view) - PAD) * augmented for name in ("crop rows", "crop columns")]
        flip = integers_at(scope.key("flip"), 2, view).bool() & augmented
        rows = _reflected(torch.arange(height, device=index.device) + shifts[0][:, None], height)
        columns = _reflected(torch.arange(width, device=index.device) + shifts[1][:, None], width)
        columns = torch.where(flip[:, None], columns.flip(1), columns)
        channels = torch.arange(self.images.shape[1], device=index.device)
        return self.images[
            self._places(index)[:, None, None, None], channels[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]
        ]


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate each image as `torch.rot90` does, by its number of turns: one gather."""
    size = x.shape[2]
    y, z = torch.meshgrid(*[torch.arange(size, device=x.device)] * 2, indexing="ij")
    end = size - 1
    rows, columns = torch.stack([y, z, end - y, end - z]), torch.stack([z, end - y, end - z, y])
    places = (rows * size + columns).flatten(1)[turns]
    return x.flatten(2).gather(2, places[:, None].expand(-1, x.shape[1], -1)).reshape(x.shape)


def _one_file(parts: Sequence[tuple[Split, Preparation]]) -> NDArray[np.uint8] | None:
    """The file that holds all images, if there is one."""
    files = [split.images.file if isinstance(split.images, StoredImages) else None for split, _ in parts]
    return files[0] if all(file is files[0] for file in files) else None


def _alike(parts: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Convert the parts to one type: if some are uint8 and others float, uint8 becomes float in 0..1."""
    if len({images.dtype for images in parts}) == 1:
        return parts
    return [images.astype(np.float32) / 255 if images.dtype == np.uint8 else images for images in parts]


def _channels_first(images: NDArray[Any], channels: int | None) -> NDArray[Any]:
    """(n, h, w, c) as (n, c, h, w); with `channels`, grey images are repeated to that many channels."""
    if images.ndim == 2:
        return images
    images = np.moveaxis(images, -1, 1)
    return images if channels is None else np.broadcast_to(images, (len(images), channels, *images.shape[2:]))


def _reflected(place: Tensor, size: int) -> Tensor:
    """Reflect indices at the border (the border itself is not repeated), as often as a small image needs."""
    return (size - 1) - ((size - 1) - place.abs() % max(1, 2 * (size - 1))).abs()
