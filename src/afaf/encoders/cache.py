"""An encoder that caches the features of images in a folder, on request: the same images are encoded once.

A file is named by a digest of the prepared pixels, in a folder named by encoder, size and runtime. Files that cannot be used are replaced.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from afaf.encoders.encoder import Encoder, padded
from afaf.files import make_folders, writing
from afaf.streams.sources.source import Pixels


class CachedEncoder(Encoder):
    """Gives the same features as the encoder, bit for bit."""

    def __init__(self, encoder: Encoder, folder: Path):
        super().__init__(encoder.identity, encoder.run, encoder.device, encoder.module, encoder.threads)
        self.folder = folder / f"{encoder.identity.digest[:16]}-{encoder.identity.preprocessing.size}-{encoder.runtime}"
        make_folders(self.folder, "choose another folder for --cache")

    def encode(self, images: Pixels) -> Tensor:
        paths = [self.folder / f"{hashlib.sha256(image.tobytes()).hexdigest()}.npy" for image in images]
        features = [self._read(path) for path in paths]
        missing = [i for i, found in enumerate(features) if found is None]
        if missing:
            for i, made in zip(missing, super().encode(padded(images[missing])), strict=False):
                self._write(paths[i], made)
                features[i] = made
        return torch.stack([found for found in features if found is not None])

    def _read(self, path: Path) -> Tensor | None:
        try:
            found = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        fits = isinstance(found, np.ndarray) and found.shape == (self.identity.features,) and found.dtype == np.float32
        return torch.from_numpy(found) if fits and np.isfinite(found).all() else None

    def _write(self, path: Path, features: Tensor) -> None:
        part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
        with writing(path):
            with part.open("wb") as file:
                np.save(file, features.numpy())
            os.replace(part, path)
