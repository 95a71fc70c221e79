"""Costs of the paper's streams, to the last weight and to six digits of the FLOPs; no data is needed."""

from __future__ import annotations

import pytest

import afaf

PAPER = {  # stream: (dense weights, SpaceNet's weights, AFAF's weights, dense FLOPs)
    "split-cifar10": (23_459_520, 3_624_810, 3_489_966, 1.49778e15),
    "sim-cifar10": (23_459_520, 7_638_910, 7_555_126, 1.49778e15),
    "sim-cifar100": (23_471_808, 2_112_512, 2_086_160, 2.39668e14),
    "mix": (23_520_960, 1_269_200, 1_197_140, 5.60005e15),
}


@pytest.mark.parametrize("stream", PAPER)
def test_the_papers_table(stream: str) -> None:
    dense, spacenet, reusing, flops = PAPER[stream]
    for method, params in {"spacenet": spacenet, "afaf": reusing, "finetune": dense}.items():
        costs = afaf.costs(stream, method)
        assert (costs.params, costs.dense_params) == (params, dense)
        assert float(f"{costs.dense_flops:.5e}") == flops
        assert costs.paper_flops == pytest.approx(flops * params / dense, rel=1e-5)


def test_counted_flops_by_hand() -> None:
    """An mlp 64-400-400-10 on digits: forward 2 per weight, as much again for the gradients of weights, and of inputs but the first's."""
    outline = afaf.open_stream("split-digits").outline
    counted = afaf.costs("split-digits", "joint", settings={"learn.epochs": 2}).counted_flops
    first, others = 64 * 400, 400 * 400 + 400 * 10
    assert counted == 2 * sum(outline.train_counts) * (4 * first + 6 * others)


def test_reuse_counts_no_backward_below_l_reuse() -> None:
    base = {"network.name": "small-cnn", "sparse": {"alloc": {"all": 20}, "density": {"all": 20}, "fixed": {"all": 5, "output": 100}}}
    low = afaf.costs("split-digits", "afaf", settings={**base, "method.l_reuse": 2}).counted_flops
    high = afaf.costs("split-digits", "afaf", settings={**base, "method.l_reuse": 3}).counted_flops
    assert high < low
