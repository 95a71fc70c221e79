"""Keyed randomness: every draw is a function of (seed, purpose, task, epoch, ...), never of what was drawn before.

So any epoch can be replayed, no part's draws shift another's, and engines, devices and resumed runs agree. Two kinds of draw:

- `generator(...)`: a fresh CPU generator for the few draws that need one (which neurons, in which order);
- `uniform_at(...)`: the number that belongs to a place (a weight, an image, an image's neuron), computed from the place's index
  alone, on any device, so that a part of a large array can be drawn without drawing the rest.
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
CACHED = 1 << 16  # places drawn at once on a CPU, so that they stay in its cache


def check_seed(seed: Any, name: str = "the seed") -> None:
    """A seed is a whole number from 0 that a file can hold; anything else is refused by its name."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= seed < LARGEST_SEED:
        raise ConfigError(f"{name} must be a whole number from 0 to 2**64 - 1, not {seed!r}")


def _digest(parts: tuple[object, ...]) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()


def key(seed: int, *purpose: str | int) -> Key:
    """The key of one purpose, for `uniform_at`."""
    digest = _digest((int(seed), *purpose))
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:], "little", signed=True)


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator that belongs to one purpose."""
    return torch.Generator().manual_seed(int.from_bytes(_digest((int(seed), *purpose)), "little"))


def _shift_right(x: Tensor, by: int) -> Tensor:
    return (x >> by).bitwise_and_((1 << (32 - by)) - 1)  # logical, though the integers are signed


def mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers in which every input bit moves every output bit (Wellons' lowbias32). Changes x in place."""
    x ^= _shift_right(x, 16)
    x *= 0x7FEB352D
    x ^= _shift_right(x, 15)
    x *= 0x846CA68B - (1 << 32)
    x ^= _shift_right(x, 16)
    return x


def bits_at(key: Key | Tensor, *indices: Tensor) -> Tensor:
    """32 random bits for each place, as int32. A place is named by one or more integer indices that broadcast together.

    A key may lie on the device: what was captured with it can then be replayed with another.
    """
    x = mix(mix(indices[0].to(torch.int32) ^ key[0]) ^ key[1])
    for index in indices[1:]:
        x = mix(x ^ index.to(torch.int32) * GOLDEN)  # xor, not sum: two rows of places never share a run of numbers
    return x


def uniform_at(key: Key, *indices: Tensor) -> Tensor:
    """A float32 in [0, 1) for each place; the same bits on every device."""
    return _shift_right(bits_at(key, *indices), 8).to(torch.float32) * 2.0**-24


def integers_at(key: Key, below: int, *indices: Tensor) -> Tensor:
    """An integer in 0..below-1 for each place (`below` small against 2**24)."""
    return (uniform_at(key, *indices) * below).to(torch.int64)


def keep_at(key: Key | Tensor, rate: float, samples: Tensor, neurons: Tensor, positions: int) -> Tensor:
    """Dropout: for each (sample, neuron, position) whether it is kept, with probability 1 - rate (to 16 bits).

    Two positions of a neuron share 32 random bits, so a neuron's decisions do not depend on which other neurons are there. In memory the
    neurons come last, as in what a convolution returns.
    """
    words, halves = (positions + 1) // 2, min(positions, 2)
    index = torch.arange(words, dtype=torch.int32, device=neurons.device)
    places = (neurons.to(torch.int32) * words + index[:, None]).reshape(1, -1)
    limit = (round(rate * 65536) - 32768) << 16  # both halves are compared as upper ones, so that the other half does not matter
    step = max(1, CACHED // places.shape[1]) if samples.device.type == "cpu" else max(1, len(samples))
    kept = torch.empty(len(samples), words, halves, len(neurons), dtype=torch.bool, device=neurons.device)
    for part, these in zip(samples.split(step), kept.split(step), strict=True):
        bits = bits_at(key, part[:, None], places).reshape(len(part), words, len(neurons))
        for half in range(halves):
            torch.ge(bits if half else bits << 16, limit, out=these[:, :, half])
    return kept.flatten(1, 2)[:, :positions].transpose(1, 2)
