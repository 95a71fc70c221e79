"""The features that heads sum up: the encoder's, evened out."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def evened(features: Tensor) -> Tensor:
    """The square root of each, with its sign, then scaled to length 1: no few strong features decide, nor an image's contrast."""
    return F.normalize(features.sign() * features.abs().sqrt(), dim=1)
