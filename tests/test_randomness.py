"""Draws are functions of their key: replayable, independent of order and batch, well spread."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import afaf
from afaf.errors import ConfigError
from afaf.lifelong.settings import LifelongSettings, plan_life
from afaf.randomness import bits_at, check_seed, generator, integers_at, keep_at, key, mix, uniform_at

keys = st.tuples(st.integers(0, 2**31), st.sampled_from(["order", "crop", "weights"]), st.integers(0, 50))


def test_mix_follows_its_published_values() -> None:
    """lowbias32 in arithmetic modulo 2**32, worked out with Python's integers."""

    def reference(x: int) -> int:
        x ^= x >> 16
        x = x * 0x7FEB352D & 0xFFFFFFFF
        x ^= x >> 15
        x = x * 0x846CA68B & 0xFFFFFFFF
        return x ^ x >> 16

    values = [0, 1, 2, 12345, 2**31 - 1, -1, -(2**31)]
    mixed = mix(torch.tensor(values, dtype=torch.int32)).tolist()
    assert [m & 0xFFFFFFFF for m in mixed] == [reference(v & 0xFFFFFFFF) for v in values]


@given(keys, st.integers(1, 200), st.integers(1, 50))
def test_a_place_keeps_its_number_whatever_else_is_drawn(parts: tuple[int, str, int], n: int, m: int) -> None:
    k = key(*parts)
    rows, columns = torch.arange(n, dtype=torch.int32), torch.arange(m, dtype=torch.int32)
    whole = uniform_at(k, rows[:, None], columns[None, :])
    some_rows = torch.randperm(n)[: max(1, n // 2)]
    some_columns = torch.randperm(m)[: max(1, m // 2)]
    part = uniform_at(k, rows[some_rows][:, None], columns[some_columns][None, :])
    assert torch.equal(part, whole[some_rows][:, some_columns])


def test_numbers_are_uniform_and_uncorrelated() -> None:
    k = key(3, "weights", 1)
    u = uniform_at(k, torch.arange(400, dtype=torch.int32)[:, None], torch.arange(1000, dtype=torch.int32)[None])
    assert abs(float(u.mean()) - 0.5) < 0.003
    assert abs(float(u.var()) - 1 / 12) < 0.001
    counts = torch.histc(u, bins=16, min=0, max=1)
    assert float((counts - counts.mean()).abs().max() / counts.mean()) < 0.03
    correlations = torch.corrcoef(u[:60])
    assert float((correlations - torch.eye(60)).abs().max()) < 0.16  # 5 standard deviations of 1000 samples


@given(keys, keys)
def test_different_keys_give_different_draws(a: tuple[int, str, int], b: tuple[int, str, int]) -> None:
    places = torch.arange(64, dtype=torch.int32)
    assert (a == b) == torch.equal(bits_at(key(*a), places), bits_at(key(*b), places))
    assert (a == b) == torch.equal(torch.randperm(64, generator=generator(*a)), torch.randperm(64, generator=generator(*b)))


def test_integers_stay_below_their_bound_and_reach_all() -> None:
    drawn = integers_at(key(0, "crop"), 9, torch.arange(5000))
    assert sorted(set(drawn.tolist())) == list(range(9))


@given(keys, st.integers(1, 5), st.sampled_from([0.0, 0.2, 0.5, 0.9]))
def test_a_neurons_dropout_does_not_depend_on_its_neighbours(parts: tuple[int, str, int], positions: int, rate: float) -> None:
    samples, neurons = torch.arange(40), torch.arange(30)
    whole = keep_at(key(*parts), rate, samples, neurons, positions)
    some, few = torch.tensor([3, 4, 17, 29]), torch.tensor([39, 0, 12])
    assert torch.equal(keep_at(key(*parts), rate, few, some, positions), whole[few][:, some])
    assert abs(float(whole.float().mean()) - (1 - rate)) < 0.08


def test_drawing_changes_no_argument() -> None:
    places = torch.arange(9, dtype=torch.int32)
    bits_at(key(0, "x"), places, places)
    assert places.tolist() == list(range(9))


@pytest.mark.parametrize("seed", [-1, 1 << 64, 0.5, True, None])
def test_a_seed_that_is_no_whole_number_from_0_is_refused_wherever_one_is_given(seed: Any) -> None:
    with pytest.raises(ConfigError, match="must be a whole number from 0"):
        check_seed(seed)
    with pytest.raises(ConfigError, match="must be a whole number from 0"):
        afaf.run("split-digits", "finetune", seed=seed, device="cpu")
    with pytest.raises(ConfigError, match="must be a whole number from 0"):
        plan_life((1, 8, 8), 2, 10, LifelongSettings(seed=seed))
