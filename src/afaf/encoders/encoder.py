"""A frozen network that turns images into feature vectors, batch by batch."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from afaf.encoders.identity import Identity, Preprocessing
from afaf.errors import DataError
from afaf.streams.sources.images import fit, read_image
from afaf.streams.sources.source import Pixels

PIECE = 4  # images that a thread reads, and on a CPU encodes, at a time: with more, activations would be allocated anew for every batch
BATCH = 256  # on other devices
Run = Callable[[Tensor], Tensor]  # normalised pixels (n, 3, h, w) to features (n, d), or maps (n, d, h, w)
T = TypeVar("T")
R = TypeVar("R")


class Encoder:
    """`features` is a function of each image alone, independent of the other images."""

    runtime = "torch"  # what runs the network; features of two runtimes differ by rounding

    def __init__(
        self, identity: Identity, run: Run, device: torch.device | str = "cpu", module: nn.Module | None = None, threads: bool = True
    ):
        """`module` is the network that `run` calls, for export; None: it cannot be exported. `threads`: several may call `run` at once."""
        self.identity, self.run, self.device, self.module = identity, run, torch.device(device), module
        prepared = identity.preprocessing
        self.mean, self.std = (torch.tensor(value, device=self.device).reshape(3, 1, 1) for value in (prepared.mean, prepared.std))
        self.batch = PIECE if self.device.type == "cpu" else BATCH
        self.threads = threads

    def features(self, images: Pixels) -> Tensor:
        """Features (n, d), on the CPU, of uint8 images (n, h, w, 1 or 3), all of one size."""
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise DataError(f"an encoder takes bytes (n, height, width, 1 or 3), not {images.dtype} {images.shape}")
        return torch.cat([features for _, _, features in self.stream(range(len(images)), lambda i: self.prepare(images[i : i + 1]))])

    def prepare(self, images: Pixels) -> Pixels:
        return prepare(images, self.identity.preprocessing)

    def read(self, path: Path | str) -> Pixels:
        """The image in a file, prepared, (1, side, side, 3)."""
        return self.prepare(read_image(path, None)[None])

    def stream(self, items: Sequence[T], read: Callable[[T], Pixels | None]) -> Iterator[tuple[list[T], Pixels, Tensor]]:
        """Items, their images and features, batch by batch in the order of the items; those whose image is None are left out.

        On a CPU each thread reads and encodes its own batches with one PyTorch thread, because threads that share a batch wait for
        each other. On other devices threads read ahead of the encoder. Pillow releases the interpreter's lock when it decodes.
        """
        workers = torch.get_num_threads()
        pieces = (items[start : start + PIECE] for start in range(0, len(items), PIECE))

        def found(some: Sequence[T]) -> list[tuple[T, Pixels]]:
            return [(item, image) for item in some if (image := read(item)) is not None]

        try:  # a pool's threads that silence Pillow may leave warnings silenced, and they set the threads of PyTorch's solvers
            with warnings.catch_warnings(), ThreadPoolExecutor(workers, "encode", torch.set_num_threads, (1,)) as pool:
                if self.threads and self.device.type == "cpu":
                    yield from in_order(pool, lambda some: self._encoded(found(some)), pieces, 2 * workers)
                    return
                done = in_order(pool, found, pieces, max(2 * workers, 2 * self.batch // PIECE))
                while batch := list(islice(done, self.batch // PIECE)):
                    yield self._encoded([*chain(*batch)])
        finally:
            torch.set_num_threads(workers)

    def _encoded(self, found: Sequence[tuple[T, Pixels]]) -> tuple[list[T], Pixels, Tensor]:
        side = self.identity.preprocessing.size
        images = np.concatenate([np.empty((0, side, side, 3), np.uint8), *(image for _, image in found)])
        features = self.encode(padded(images))[: len(found)] if found else torch.empty(0, self.identity.features)
        return [item for item, _ in found], images, features

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


def tensor_of(out: Any) -> Tensor:
    """A model's output as a tensor; transformers models return a record, of which the pooled output or the first token's is used."""
    if not isinstance(out, Tensor):
        pooled = getattr(out, "pooler_output", None)
        out = pooled if pooled is not None else out.last_hidden_state[:, 0]
        out = out.flatten(1)
    if out.ndim not in (2, 4):
        raise DataError(f"an encoder gives features (n, d) or maps (n, d, h, w), not {tuple(out.shape)}")
    features: Tensor = out
    return features


def prepare(images: Pixels, how: Preprocessing) -> Pixels:
    """The centre squares, in colour, at the size that an encoder expects."""
    if how.crop < 1:
        rows, columns = (slice(round(n * (1 - how.crop) / 2), n - round(n * (1 - how.crop) / 2)) for n in images.shape[1:3])
        images = images[:, rows, columns]
    fitted = fit(images, how.size, "the images")
    return np.repeat(fitted, 3, axis=3) if fitted.shape[3] == 1 else fitted


def padded(images: Pixels) -> Pixels:
    """Repeat the last image up to a multiple of 4: products with fewer rows are computed, and rounded, differently."""
    return np.concatenate([images, np.repeat(images[-1:], -len(images) % PIECE, 0)])


def in_order(pool: ThreadPoolExecutor, work: Callable[[T], R], pieces: Iterable[T], ahead: int) -> Iterator[R]:
    """A pool's results for the pieces, in their order; `ahead` of them are begun in advance."""
    left = iter(pieces)
    waiting = deque(pool.submit(work, piece) for piece in islice(left, ahead))
    try:
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(work, piece) for piece in islice(left, 1))
    finally:
        for future in waiting:
            future.cancel()
