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


PACKNET = {  # stream: (FLOPs and #params as the paper prints them, in units of the dense network)
    "split-cifar10": (3.081, 1.0),
    "sim-cifar10": (3.081, 1.0),
    "sim-cifar100": (5.241, 0.8),
    "mix": (5.250, 0.8),
}


@pytest.mark.parametrize("stream", PACKNET)
def test_packnet_as_printed_and_task_by_task(stream: str) -> None:
    """The printed formula charges every task for the whole sequence; with its own samples only, a task's training costs a fifth or so."""
    flops, params = PACKNET[stream]
    costs = afaf.costs(stream, "packnet")
    assert costs.paper_flops_ratio == pytest.approx(flops, abs=0.01)
    assert costs.params_ratio == pytest.approx(params, abs=0.001)
    assert costs.paper_flops_by_task_ratio == pytest.approx(0.7, abs=0.03)


@pytest.mark.parametrize("method", ["ewc", "mas", "lwf", "finetune", "joint"])
def test_dense_methods_cost_one_in_the_papers_table(method: str) -> None:
    costs = afaf.costs("split-cifar10", method)
    assert (costs.paper_flops_ratio, costs.paper_flops_by_task_ratio, costs.params_ratio, costs.inference_flops_ratio) == (1, 1, 1, 1)


def test_packnet_counted_by_hand() -> None:
    """Two tasks on an mlp 64-400-400-4 with half of each layer: the second trains the other half and prunes nothing."""
    stream = afaf.open_stream("split-digits")[:2]
    n = stream.outline.train_counts
    counted = afaf.costs(stream, "packnet", settings={"learn.epochs": 3, "method.share": 50, "method.retrain_epochs": 2}).counted_flops
    first, second, row = 64 * 400, 400 * 400, 400

    def phase(live: tuple[int, int, int], moving: tuple[int, int, int]) -> int:
        """Forward and gradients of weights 2 each, gradients of neurons 2 for all but the first layer."""
        return 2 * sum(live) + 2 * sum(moving) + 2 * sum(live[1:])

    expected = n[0] * 3 * phase((first, second, 2 * row), (first, second, 2 * row))
    expected += n[0] * 2 * phase((first // 2, second // 2, 2 * row), (first // 2, second // 2, 2 * row))
    expected += n[1] * 3 * phase((first, second, 4 * row), (first // 2, second // 2, 2 * row))
    assert counted == expected


def test_extra_work_is_counted() -> None:
    """EWC and MAS estimate for one more epoch, LwF's teacher answers in every epoch but the first task's."""
    stream = afaf.open_stream("split-digits")[:2]
    n, settings = stream.outline.train_counts, {"learn.epochs": 3, "method.loss_over": "task"}
    plain = afaf.costs(stream, "finetune", settings=settings).counted_flops
    first, second, row = 64 * 400, 400 * 400, 400
    one_pass = [2 * (first + second + rows * row) for rows in (2, 4)]
    for method in ("ewc", "mas"):
        assert afaf.costs(stream, method, settings=settings).counted_flops - plain == sum(
            3 * a * b for a, b in zip(n, one_pass, strict=True)
        )
    assert afaf.costs(stream, "lwf", settings=settings).counted_flops - plain == one_pass[0] * n[1] * 3


def test_bytes_kept_on_the_papers_network() -> None:
    """Importance and anchor: two floats for each parameter but the output's; the old model: one for all; masks: two bytes a weight."""
    weights, biases, norms = 23_459_520, 64 + 128 + 256 + 2048 + 2048, 2 * (128 + 256)
    protected = weights - 10 * 2048 + biases + norms
    assert afaf.costs("split-cifar10", "ewc").kept == {"importance": 4 * protected, "anchor": 4 * protected}
    assert afaf.costs("split-cifar10", "ewc", settings={"method.blend": "separate"}).kept_bytes == 5 * 2 * 4 * protected
    assert afaf.costs("split-cifar10", "lwf").kept == {"old model": 4 * (weights + biases + 10 + 2 * norms)}
    after_each = {"biases and norms after each task": 5 * 4 * (biases + 10)}
    assert afaf.costs("split-cifar10", "packnet").kept == {"masks": 2 * weights} | after_each
    assert afaf.costs("split-cifar10", "ridge").kept_bytes == 8 * (2048**2 + 2048 * 10 + 2048 + 10)
    assert afaf.costs("split-cifar10", "finetune").kept == {}


def test_inference_by_hand() -> None:
    costs = afaf.costs("split-digits", "ridge", settings={"method.features": "patches", "method.filters": 8, "method.patch": 3})
    assert costs.inference_flops == 2 * 6 * 6 * 8 * 9 + 2 * (8 * 8) * 10
    assert costs.params == 8 * 9 + 8 * 8 * 10
    assert afaf.costs("split-digits", "joint").inference_flops == 2 * (64 * 400 + 400 * 400 + 400 * 10)
