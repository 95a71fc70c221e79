"""Modules as people write them, which described networks are compared with."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """A basic block as people write it."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)) if stride != 1 else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)  # first, so that its layers come first
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet10(nn.Module):
    def __init__(self, width: int, classes: int, channels: int = 3):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(channels, width, 3, 1, 1), nn.BatchNorm2d(width)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        self.blocks = nn.Sequential(*(Block(a, b, 1 if i == 0 else 2) for i, (a, b) in enumerate(itertools.pairwise(sizes))))
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))  # type: ignore[no-any-return]
