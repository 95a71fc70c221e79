"""A frozen network that turns images into feature vectors, batch by batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from afaf.encoders.identity import Identity, Preprocessing
from afaf.errors import DataError
from afaf.streams.sources.images import fit, read_image
from afaf.streams.sources.source import Pixels

BATCH = {"cpu": 8}  # of other devices: 256; on a CPU, activations of few images stay in its cache
T = TypeVar("T", bound=Path | str)  # a path, or a URL
Run = Callable[[Tensor], Tensor]  # normalised pixels (n, 3, h, w) to features (n, d), or maps (n, d, h, w)


class Encoder:
    """`features` is a function of each image alone, whatever images come with it."""

    def __init__(self, identity: Identity, run: Run, device: torch.device | str = "cpu", module: nn.Module | None = None):
        """`module` is the network that `run` calls, for export; None: it cannot be exported."""
        self.identity, self.run, self.device, self.module = identity, run, torch.device(device), module
        prepared = identity.preprocessing
        self.mean, self.std = (torch.tensor(value, device=self.device).reshape(3, 1, 1) for value in (prepared.mean, prepared.std))
        self.batch = BATCH.get(self.device.type, 256)

    def features(self, images: Pixels) -> Tensor:
        """(n, d) on the CPU, of images (n, h, w, 1 or 3) of bytes, all of one size."""
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise DataError(f"an encoder takes bytes (n, height, width, 1 or 3), not {images.dtype} {images.shape}")
        parts = [self.encode(self.prepare(part)) for part in np.split(images, range(self.batch, len(images), self.batch))]
        return torch.cat(parts)

    def part(self, images: Pixels) -> tuple[Pixels, Tensor]:
        """A batch of images, prepared, and their features."""
        prepared = self.prepare(images)
        return prepared, self.encode(prepared)

    def prepare(self, images: Pixels) -> Pixels:
        return prepare(images, self.identity.preprocessing)

    def read(self, path: Path | str) -> Pixels:
        """The image in a file, prepared, (1, side, side, 3)."""
        return self.prepare(read_image(path, None)[None])

    def stream(self, paths: list[Path], workers: int = 2) -> Iterator[tuple[list[Path], Pixels, Tensor]]:
        """Paths, pixels and features, batch by batch in the order of the paths.

        Images are decoded by threads (Pillow releases the interpreter's lock meanwhile), a few batches ahead of the encoder.
        """
        for some, images in read_ahead(paths, self.read, self.batch, workers):
            yield some, images, self.encode(images)

    @torch.inference_mode()
    def encode(self, images: Pixels) -> Tensor:
        """The features of prepared images."""
        pixels = torch.from_numpy(np.ascontiguousarray(images)).to(self.device).permute(0, 3, 1, 2)
        out = self.run((pixels.float() - self.mean) / self.std).float()
        out = out.mean((2, 3)) if out.ndim == 4 else out
        if out.shape != (len(images), self.identity.features) or not bool(torch.isfinite(out).all()):
            raise DataError(
                f"the encoder {self.identity.name} gave {tuple(out.shape)} for {len(images)} images, or numbers that are not finite: "
                f"it must give {self.identity.features} finite features for each"
            )
        return out.cpu()


def prepare(images: Pixels, how: Preprocessing) -> Pixels:
    """The middle squares, in colour, at the size that an encoder takes."""
    if how.crop < 1:
        rows, columns = (slice(round(n * (1 - how.crop) / 2), n - round(n * (1 - how.crop) / 2)) for n in images.shape[1:3])
        images = images[:, rows, columns]
    fitted = fit(images, how.size, "the images")
    return np.repeat(fitted, 3, axis=3) if fitted.shape[3] == 1 else fitted


def read_ahead(paths: list[T], read: Callable[[T], Pixels], batch: int, workers: int) -> Iterator[tuple[list[T], Pixels]]:
    """Images (1, h, w, c) of one shape, read by threads and joined into batches."""
    with warnings.catch_warnings(), ThreadPoolExecutor(workers) as pool:  # threads that silence Pillow may leave warnings silenced
        ahead = 4 * batch
        waiting = {path: pool.submit(read, path) for path in paths[:ahead]}
        for start in range(0, len(paths), batch):
            some = paths[start : start + batch]
            waiting |= {path: pool.submit(read, path) for path in paths[start + ahead : start + ahead + batch]}
            yield some, np.concatenate([waiting.pop(path).result() for path in some])
