"""Keyed randomness: every draw is a function of (seed, purpose, task, epoch, ...), independent of earlier draws.

Any epoch can therefore be replayed, a new draw does not change others, and engines, devices and resumed runs agree. Two kinds of draw:

- `generator(...)`: a new CPU generator, for permutations and other draws that need one;
- `uniform_at(...)`: a number per index (of a weight, an image, an image's neuron), computed from the index alone on any device, so
  that a part of a large array can be drawn without the rest.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from afaf.errors import ConfigError

Key = tuple[int, int]  # two signed 32-bit halves
GOLDEN = 0x9E3779B9 - (1 << 32)  # 2**32 over the golden ratio: spreads consecutive indices
LARGEST_SEED = 1 << 64
CACHED = 1 << 16  # indices drawn at once on a CPU, to fit its cache


def check_seed(seed: Any) -> None:
    """Refuse a seed that is not an integer from 0 to 2**64 - 1."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= seed < LARGEST_SEED:
        raise ConfigError(f"the seed must be a whole number from 0 to 2**64 - 1, not {seed!r}")


def _digest(parts: tuple[object, ...]) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()


def key(seed: int, *purpose: str | int) -> Key:
    """Return the key of a purpose, for `uniform_at`."""
    digest = _digest((int(seed), *purpose))
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:], "little", signed=True)


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a CPU generator seeded for a purpose."""
    return torch.Generator().manual_seed(int.from_bytes(_digest((int(seed), *purpose)), "little"))


def _shift_right(x: Tensor, by: int) -> Tensor:
    return (x >> by).bitwise_and_((1 << (32 - by)) - 1)  # a logical shift of signed integers


def mix(x: Tensor) -> Tensor:
    """Hash 32-bit integers in place, by Wellons' lowbias32: a bijection in which every input bit affects every output bit."""
    x ^= _shift_right(x, 16)
    x *= 0x7FEB352D
    x ^= _shift_right(x, 15)
    x *= 0x846CA68B - (1 << 32)
    x ^= _shift_right(x, 16)
    return x


def bits_at(key: Key | Tensor, *indices: Tensor) -> Tensor:
    """Return 32 random bits, as int32, for each combination of the indices, which broadcast together.

    A key on the device can change between replays of a captured CUDA graph.
    """
    x = mix(mix(indices[0].to(torch.int32) ^ key[0]) ^ key[1])
    for index in indices[1:]:
        x = mix(x ^ index.to(torch.int32) * GOLDEN)  # xor instead of a sum, so that no two rows share a run of numbers
    return x


def uniform_at(key: Key, *indices: Tensor) -> Tensor:
    """Return a float32 in [0, 1) for each index; the same bits on every device."""
    return _shift_right(bits_at(key, *indices), 8).to(torch.float32) * 2.0**-24


def integers_at(key: Key, below: int, *indices: Tensor) -> Tensor:
    """Return an integer in 0..below-1 for each index (`below` much smaller than 2**24)."""
    return (uniform_at(key, *indices) * below).to(torch.int64)


def keep_at(key: Key | Tensor, rate: float, samples: Tensor, neurons: Tensor, positions: int) -> Tensor:
    """Return the dropout mask (sample, neuron, position): True with probability 1 - rate (to 16 bits).

    Two positions of a neuron share 32 random bits; a neuron's mask does not depend on the other neurons. In memory the neurons are the
    last dimension (channels_last).
    """
    words, halves = (positions + 1) // 2, min(positions, 2)
    index = torch.arange(words, dtype=torch.int32, device=neurons.device)
    places = (neurons.to(torch.int32) * words + index[:, None]).reshape(1, -1)
    limit = (round(rate * 65536) - 32768) << 16  # each half is compared as the upper half, so that the other has no influence
    step = max(1, CACHED // places.shape[1]) if samples.device.type == "cpu" else max(1, len(samples))
    kept = torch.empty(len(samples), words, halves, len(neurons), dtype=torch.bool, device=neurons.device)
    for part, these in zip(samples.split(step), kept.split(step), strict=True):
        bits = bits_at(key, part[:, None], places).reshape(len(part), words, len(neurons))
        for half in range(halves):
            torch.ge(bits if half else bits << 16, limit, out=these[:, :, half])
    return kept.flatten(1, 2)[:, :positions].transpose(1, 2)
