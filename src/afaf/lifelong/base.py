"""The base of both kinds of model: an encoder, found by its name when first needed, and probabilities from logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from afaf.encoders.encoder import Encoder
from afaf.encoders.find import find_encoder
from afaf.encoders.identity import Identity
from afaf.errors import DataError, FileError
from afaf.heads.features import evened
from afaf.lifelong.life import Life
from afaf.streams.sources.source import Pixels

OVERSHOOT = 0.1  # how far resampled pixels may lie outside 0..1


class LearnedModel:
    life: Life
    identity: Identity | None  # of the encoder that the model was taught with; None: no encoder
    _encoder: Encoder | None = None

    @property
    def encoder(self) -> Encoder:
        if self._encoder is None:
            assert self.identity is not None
            self.attach(self.identity.name)
        assert self._encoder is not None
        return self._encoder

    @property
    def attached(self) -> bool:
        """Whether the encoder is loaded, or none is needed."""
        return self.identity is None or self._encoder is not None

    def attach(self, source: str | Path | nn.Module | Encoder, device: torch.device | str = "cpu") -> None:
        """Use this encoder; it must have the weights that the model was taught with."""
        assert self.identity is not None
        encoder = source if isinstance(source, Encoder) else find_encoder(source, device, self.identity.preprocessing)
        if encoder.identity.digest != self.identity.digest:
            raise FileError(
                f"the encoder {encoder.identity.name} has other weights ({encoder.identity.digest[:12]}) than the model was taught with "
                f"({self.identity.digest[:12]}): install that version, or begin a new model"
            )
        self._encoder = encoder
        self.identity = replace(self.identity, name=encoder.identity.name)  # its file may have moved

    @property
    def temperature(self) -> float:
        """The divisor of the logits in the softmax."""
        raise NotImplementedError

    def logits(self, images: NDArray[Any]) -> NDArray[Any]:
        """Logits (n, known classes), in the order of `life.known`."""
        raise NotImplementedError

    def probabilities(self, images: NDArray[Any]) -> NDArray[Any]:
        """Probabilities (n, known classes), in the order of `life.known`: the softmax of logits / temperature."""
        found: NDArray[Any] = torch.softmax(torch.from_numpy(self.logits(images)).double() / self.temperature, 1).numpy()
        return found


def as_bytes(images: NDArray[Any]) -> Pixels:
    """Convert images of bytes, or of floats in 0..1, to bytes; other numbers are an error."""
    if images.dtype == np.uint8:
        return images
    if len(images) and not within_1(images):
        raise DataError(
            f"pixels from {images.min():g} to {images.max():g}: an encoder sees bytes, or floats in 0..1. For pixels in 0..255 that are "
            'not bytes, give images.astype("uint8")'
        )
    scaled: Pixels = np.round(np.clip(images, 0, 1) * 255).astype(np.uint8)
    return scaled


def only_images(images: NDArray[Any]) -> NDArray[Any]:
    """Refuse vectors: an encoder takes only images."""
    if images.ndim != 4:
        raise DataError("an encoder takes images (n, h, w) or (n, h, w, c): give image_shape if these vectors are images")
    return images


def within_1(images: NDArray[Any]) -> bool:
    """Whether these are pixels in 0..1."""
    return bool(images.min() >= -OVERSHOOT and images.max() <= 1 + OVERSHOOT)


def are_fractions(images: NDArray[Any]) -> bool:
    """Whether these are pixels in 0..1, some of them between 0 and 1: no bytes as floats."""
    return len(images) > 0 and within_1(images) and bool((images != np.round(images)).any())


def inputs(encoded: Tensor) -> NDArray[np.float32]:
    """A network's inputs from an encoder's output."""
    return evened(encoded).numpy()


def encoded_inputs(encoder: Encoder, images: NDArray[Any]) -> NDArray[Any]:
    """Images (n, h, w, 1 or 3) as a network's input vectors; vectors are returned unchanged."""
    return images if images.ndim == 2 else inputs(encoder.features(as_bytes(images)))
