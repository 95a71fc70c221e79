"""Random projection and ridge (RanPAC: McDonnell et al., 2023): the ReLU of fixed random combinations of features, then a ridge head.

The projection depends on the digest of the encoder's weights and on the sizes, never on a model's seed: models with the same encoder
share it and can be merged.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.heads import ridge
from afaf.heads.sums import Linear, Sums
from afaf.randomness import generator

SIZE = 2816  # with the sums of held-out images, and 200 classes, a file of at most 80 MB
STRENGTH = 1.0  # fixed: cross-validation needs eigenvalues, which take a minute at this size


def solve(sums: Sums, *, strength: float = STRENGTH, balance: bool = True) -> Linear:
    return ridge.solve(sums, strength=strength, balance=balance)


class Projection:
    """Maps features (n, d) to (n, size)."""

    def __init__(self, encoder: str, features: int, size: int = SIZE):
        drawn = torch.randn(features, size, generator=generator(0, "projection", encoder, features, size)) / features**0.5
        self.matrix = drawn.double()  # so that rounding does not depend on the number of images

    def __call__(self, features: Tensor) -> Tensor:
        return F.relu(features.double() @ self.matrix.to(features.device)).float()
