"""An encoder that needs no training: filters that are whitened patches of photographs (Coates and Ng, 2012).

An image's features are each filter's positive and negative responses in each quarter of the image. The filters are part of this package:
benchmarks/patch_filters.py makes them from the two photographs that come with scikit-learn.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afaf.encoders.identity import Preprocessing

NAME = "patches"
FILE = "patches.npz"
PREPROCESSING = Preprocessing(size=48, mean=(127.0,) * 3, std=(64.0,) * 3)
QUARTERS = 2  # answers are averaged over a grid of 2 x 2


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with (files(__package__) / FILE).open("rb") as file, np.load(file, allow_pickle=False) as read:
            weights = read["weights"].astype(np.float32) * read["scales"][:, None, None, None]
            self.register_buffer("weights", torch.from_numpy(weights))
            self.register_buffer("biases", torch.from_numpy(read["biases"].copy()))

    def forward(self, x: Tensor) -> Tensor:
        return answers(x, self.get_buffer("weights"), self.get_buffer("biases"))


def answers(x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    """(n, 2 x filters x 4), of images (n, channels, h, w): both signs' ReLU, averaged over each quarter."""
    z = F.conv2d(x, weights, biases)
    return F.adaptive_avg_pool2d(torch.cat([F.relu(z), F.relu(-z)], 1), QUARTERS).flatten(1)
