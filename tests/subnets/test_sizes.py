"""Percentages become the whole numbers of the paper's table; keys, ranges and precedence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from afaf.errors import ConfigError
from afaf.network.ledger import Ledger
from afaf.network.zoo import describe
from afaf.runs.setup import set_up
from afaf.streams.benchmarks import outline_of
from afaf.subnets.allocate import Request, allocate_reusing
from afaf.subnets.sizes import check_percentage, equal_share, rest, share, sizes

TABLE = {
    "split-cifar10": ([3, 44, 89, 179, 409, 204, 2], [33, 979, 3982, 18302, 20859, 285]),
    "sim-cifar10": ([3, 32, 64, 128, 1024, 409, 2], [28, 614, 2457, 39321, 83763, 572]),
    "sim-cifar100": ([3, 19, 38, 76, 409, 204, 2], [11, 144, 577, 6216, 33374, 326]),
    "mix": ([3, 44, 89, 179, 204, 204, 5], [13, 391, 1593, 3651, 8323, 918]),
}


@pytest.mark.parametrize("stream", TABLE)
def test_the_papers_numbers(stream: str) -> None:
    outline = outline_of(stream)
    setup = set_up(outline, "afaf")
    sparse = setup.config.sparse
    found = sizes(setup.spec, sparse.alloc, sparse.density, sparse.fixed, 1, outline.classes_per_task[0])
    alloc, connections = TABLE[stream]
    assert [found.alloc[l] for l in range(1, 8)] == alloc
    assert [found.connections[l] for l in range(1, 7)] == connections


@pytest.mark.parametrize("n", range(1, 130))
def test_an_equal_share_is_the_nth_part(n: int) -> None:
    for size in (n, 7 * n, 64 * n - 1, 2048):
        assert share(equal_share(n), size) == size // n


def test_shares_are_exact() -> None:
    assert share(70, 10) == 7  # 0.7 * 10 is 7.000000000000001 or 6.999... as floats go
    assert share(29, 100) == 29
    assert share(12.5, 8) == 1


def test_what_candidates_leave_to_free_neurons_is_exact_too() -> None:
    assert [(share(x, 250), rest(x, 250)) for x in (30, 64.4, 65.6)] == [
        (75, 175),
        (161, 89),
        (164, 86),
    ]  # 100 - 64.4 is 35.599999999999994
    assert [rest(x / 10, 1000) for x in range(1001)] == list(range(1000, -1, -1))


def test_what_candidates_leave_is_drawn_exactly() -> None:
    """The free neurons beside the candidates are (1 - s) of what is allocated."""
    spec = describe("tiny-mlp", (64,), 4)
    wide = replace(spec, hidden=(replace(spec.hidden[0], neurons=500), *spec.hidden[1:]))
    asked = sizes(wide, {"all": 50.0}, {"all": 50.0}, {"all": 10.0}, 2, 2)
    request = Request(wide, Ledger(wide), asked, 2, (2, 3), 0, lambda _: None)
    candidates = {c: {2: torch.arange(161), 3: torch.arange(3)} for c in (2, 3)}
    drawn = allocate_reusing(request, candidates, l_reuse=2, candidate_share=64.4).record
    assert len(drawn.free[2]) == 89  # of 250


def test_the_more_specific_percentage_wins() -> None:
    spec = describe("alexnet", (3, 32, 32), 10)
    density = {"all": 1.0, "conv": {"1-2": 50.0}, "W_2": {"2": 100.0}, "output": 70.0}

    def of(l: int, task: int) -> int:
        return sizes(spec, {"all": 100.0}, density, {"all": 0.0}, task, 2).connections[l]

    pairs = 64 * 128
    assert of(2, 1) == pairs // 2
    assert of(2, 2) == pairs
    assert of(2, 3) == pairs // 100
    assert of(6, 3) == 2048 * 2 * 7 // 10


@pytest.mark.parametrize(
    ("percentage", "message"),
    [
        ({"convv": 10}, "did you mean 'conv'"),
        ({"conv": 101}, "0..100"),
        ({"conv": -1}, "0..100"),
        ({"conv": {"x": 10}}, "range of tasks"),
        ({"conv": {"1-4": 120}}, "0..100"),
        ({"conv1": 10, "conv9": 5}, "conv9"),
    ],
)
def test_bad_percentages_are_refused(percentage: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_percentage(percentage, "sparse.alloc", describe("alexnet", (3, 32, 32), 10))


def test_a_layer_nobody_speaks_of_is_an_error() -> None:
    spec = describe("alexnet", (3, 32, 32), 10)
    with pytest.raises(ConfigError, match=r"sparse\.alloc says nothing about conv1 in task 3"):
        sizes(spec, {"conv": {"1-2": 10.0}, "fc": 10.0, "output": 10.0}, {"all": 10.0}, {"all": 10.0}, 3, 2)
