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


class GroupedBlock(nn.Module):
    """A bottleneck of ResNeXt: 1x1, a grouped 3x3 that may halve the maps, 1x1."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, groups: int):
        super().__init__()
        self.reduce = nn.Sequential(nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True))
        grouped = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False)
        self.grouped = nn.Sequential(grouped, nn.BatchNorm2d(inner), nn.ReLU(inplace=True))
        self.expand = nn.Sequential(nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        projects = stride != 1 or inputs != outputs
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)) if projects else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.expand(self.grouped(self.reduce(x))) + self.shortcut(x))


class ResNeXt(nn.Module):
    """After Xie et al., 2017, for small images."""

    def __init__(self, width: int = 32, groups: int = 8, classes: int = 10, channels: int = 1):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        blocks = [GroupedBlock(width, width, 2 * width, 1, groups), GroupedBlock(2 * width, 2 * width, 4 * width, 2, groups)]
        self.blocks = nn.Sequential(*blocks)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))  # type: ignore[no-any-return]
