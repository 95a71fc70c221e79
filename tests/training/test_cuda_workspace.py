"""The parts of the CUDA engine that run without a GPU."""

from __future__ import annotations

import pytest
import torch

from afaf.methods.base import TaskContext
from afaf.methods.dense import DenseOptions
from afaf.methods.finetune import Finetune
from afaf.network.forward import Training
from afaf.network.net import Network
from afaf.network.spec import Layer, NetworkSpec
from afaf.training.cuda.fused import Fused
from afaf.training.cuda.kernels import tile_of_logits
from afaf.training.cuda.workspace import MixedPrecisionWorkspace
from afaf.training.learner import Learner
from afaf.training.settings import LearnSettings, Settings
from afaf.training.step import Workspace
from afaf.training.task_data import TaskData
from conftest import small_stream


@pytest.mark.parametrize(("batch_size", "judged"), [(64, True), (8192, True), (8193, False)])
def test_batches_too_large_for_a_tile_are_judged_by_the_loss_itself(batch_size: int, judged: bool) -> None:
    """Triton's largest tile has 2**20 numbers; a batch of 8193 takes the room of 16384, 100 classes that of 128."""
    assert tile_of_logits(batch_size, 100) == {64: 1 << 13, 8192: 1 << 20, 8193: 1 << 21}[batch_size]
    task = small_stream([2])[0]
    learner = Learner.fresh(Network(NetworkSpec("wide", (1, 8, 8), (Layer("dense", 4), Layer("dense", 4)), 100)))
    context = TaskContext(1, task.classes, TaskData([(task.train, task.preparation)]))
    method = Finetune(DenseOptions(), Settings(LearnSettings(batch_size=batch_size)))
    learner.begin(1, task.classes)
    method.start(learner, context, 0)
    work = MixedPrecisionWorkspace.of(Workspace.whole(learner, method.plan(learner, context, 0)), torch.float32)
    work.use_fused_loss(torch.zeros(1, dtype=torch.int64), torch.zeros(1), torch.zeros(1, dtype=torch.int32))
    assert (work.loss_buffers is not None) == judged


@pytest.mark.parametrize(
    ("kind", "operations"),
    [
        ("conv", ("norm", "relu")),
        ("conv", ("pool", "relu")),
        ("conv", ("dropout", "pool")),
        ("conv", ()),
        ("dense", ("norm", "relu")),
        ("dense", ()),
    ],
)
def test_a_layer_that_does_not_begin_with_relu_is_no_output(kind: str, operations: tuple[str, ...]) -> None:
    """Maps stay maps, with their bias and masked gradients, also while another kernel adds the bias of the output."""
    spec = NetworkSpec("small", (2, 6, 6), (Layer(kind, 5, operations),), 3, dropout=0.5)  # type: ignore[arg-type]
    network, x, samples = Network(spec, seed=1), torch.randn(4, 2, 6, 6), torch.arange(4, dtype=torch.int32)
    network.initialise(1, torch.ones(1, 1, 1, dtype=torch.bool))
    network.parameters.biases[0] -= 1.0
    grad_mask = {2: torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])}
    found = []
    for mode in (
        Training({2: (1, 2)}, samples, grad_mask, norm_moves=False),
        Fused({2: (1, 2)}, samples, grad_mask, norm_moves=False, without_bias=3),
    ):
        weight, bias = network.weight(1).clone().requires_grad_(), network.bias(1).clone().requires_grad_()
        h = mode.neurons_above(spec.edge(1), x, weight, bias, spec.layer(2).ops, network.parameters.norms, None)
        h.square().sum().backward()
        found.append((h.detach(), weight.grad, bias.grad))
    for expected, fused in zip(*found, strict=True):
        assert expected is not None
        assert fused is not None
        assert expected.shape == fused.shape
        assert torch.allclose(expected, fused, atol=1e-5)


def test_releasing_and_claiming_change_tensors_in_place() -> None:
    """A rewiring of one's own may call both; a captured graph keeps the memory of the first call."""
    learner = Learner.fresh(Network(NetworkSpec("small", (8,), (Layer("dense", 6),), 3), seed=1))
    learner.begin(1, (0, 1, 2))
    everywhere = torch.ones(6, 8, 1, dtype=torch.bool)
    learner.claim(1, 1, everywhere)
    weight, owner = learner.network.weight(1), learner.ledger.owner(1)
    some = everywhere & (torch.rand(6, 8, 1, generator=torch.Generator().manual_seed(0)) > 0.5)
    learner.release(1, some)
    assert learner.network.weight(1) is weight
    assert learner.ledger.owner(1) is owner
    assert bool((weight[some] == 0).all())
    assert bool((weight[~some] != 0).all())
    learner.claim(1, 1, some)
    assert learner.network.weight(1) is weight
    assert torch.equal(weight, learner.network.initial_weights(1))
