"""Makes the filters of the encoder `patches` from the two photographs that come with scikit-learn (china.jpg, flower.jpg).

    python -m benchmarks.patch_filters [--out src/afaf/encoders/patches.npz]

A filter answers to a patch p with u' Z (p - mean): Z whitens patches (ZCA), and u is a whitened patch of unit length. Both photographs are
used at three sizes. Models name the filters by their digest, so other filters make another encoder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_images
from torch import Tensor

from afaf.encoders.patches import PREPROCESSING
from afaf.randomness import generator

WIDTHS = (64, 128, 256)  # of the photographs
SIDE, FILTERS, PATCHES = 6, 256, 20_000
SMOOTHING = 0.01  # added to the covariance, in units of its mean variance: directions without content are not blown up


def photographs() -> list[Tensor]:
    """(3, h, w) each, normalised."""
    found = []
    for pixels in load_sample_images().images:
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float()
        for width in WIDTHS:
            size = (image.shape[2] * width // image.shape[3], width)
            small = F.interpolate(image, size=size, mode="bicubic", antialias=True).clamp(0, 255)[0]
            found.append((small - PREPROCESSING.mean[0]) / PREPROCESSING.std[0])
    return found


def random_patches(images: list[Tensor], count: int, draw: torch.Generator) -> Tensor:
    def below(limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=draw))

    patches = []
    for _ in range(count):
        image = images[below(len(images))]
        row, column = below(image.shape[1] - SIDE + 1), below(image.shape[2] - SIDE + 1)
        patches.append(image[:, row : row + SIDE, column : column + SIDE].flatten())
    return torch.stack(patches).double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("src/afaf/encoders/patches.npz"))
    options = parser.parse_args()
    images, draw = photographs(), generator(0, "patches of photographs")
    seen = random_patches(images, PATCHES, draw)
    mean = seen.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(seen.T))
    whiten = vectors @ torch.diag((values.clamp(min=0) + SMOOTHING * values.mean()).rsqrt()) @ vectors.T
    filters = F.normalize((random_patches(images, FILTERS, draw) - mean) @ whiten) @ whiten
    scales = filters.abs().amax(1) / 127
    rounded = (filters / scales[:, None]).round()
    biases = -(rounded * scales[:, None]) @ mean
    np.savez_compressed(
        options.out,
        weights=rounded.to(torch.int8).reshape(FILTERS, 3, SIDE, SIDE).numpy(),
        scales=scales.float().numpy(),
        biases=biases.float().numpy(),
    )
    print(f"wrote {options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
