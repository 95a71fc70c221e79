"""The parts of the CUDA engine that run without a GPU."""

from __future__ import annotations

import pytest
import torch

from afaf.methods.base import TaskContext
from afaf.methods.dense import DenseOptions
from afaf.methods.finetune import Finetune
from afaf.network.forward import Parameters, Training
from afaf.network.net import Network
from afaf.network.spec import Layer, NetworkSpec
from afaf.training.compact import gather, neurons_that_matter
from afaf.training.cuda.chain_workspace import MixedPrecisionWorkspace
from afaf.training.cuda.fused import Fused
from afaf.training.cuda.kernels import tile_of_logits
from afaf.training.cuda.workspace import DeviceWorkspace
from afaf.training.learner import Learner
from afaf.training.settings import LearnSettings, Settings
from afaf.training.step import Workspace, start_optimiser
from afaf.training.task_data import RngScope, TaskData
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


class ConvertedOneByOne(DeviceWorkspace):
    """Leaves it to autocast to convert each weight."""

    def as_read(self, leaves: Parameters) -> Parameters:
        self.read = [leaf.detach() for leaf in leaves.weights]
        return leaves


@pytest.mark.parametrize("penalised", [False, True])
def test_weights_converted_together_learn_what_autocast_learns(penalised: bool) -> None:
    """A residual network in bfloat16, two steps; a term of the loss may read the weights themselves."""
    block = (
        Layer("conv", 6, ("norm", "relu"), padding=1),
        Layer("conv", 8, ("norm",), kernel=1, stride=2, inputs=(2,)),
        Layer("conv", 8, ("norm", "relu"), stride=2, padding=1, inputs=(2,)),
        Layer("conv", 8, ("norm",), padding=1, groups=2),
        Layer("sum", 8, ("relu", "global-mean"), inputs=(3, 5)),
        Layer("dense", 5),
    )
    task, learned = small_stream([3])[0], []
    data = TaskData([(task.train, task.preparation)])
    for kind in (ConvertedOneByOne, DeviceWorkspace):
        learner = Learner.fresh(Network(NetworkSpec("small", (1, 8, 8), block, 3), seed=1))
        learner.begin(1, task.classes)
        settings = Settings(LearnSettings(batch_size=8, lr=0.5, momentum=0.9, weight_decay=0.01))
        method, context = Finetune(DenseOptions(), settings), TaskContext(1, task.classes, data)
        method.start(learner, context, 0)
        plan = method.plan(learner, context, 0)
        cross_entropy = plan.loss
        if penalised:
            plan.loss = lambda step, plain=cross_entropy: plain(step) + sum(w.square().sum() for w in step.parameters.weights)
        start_optimiser(learner, plan, 0)
        work = kind.on_device(gather(learner, plan, neurons_that_matter(learner, plan)), autocast=True)
        scope = RngScope(0, 1)
        work.begin(scope, plan.coefficients(0.5, 0, 2))
        for samples in (torch.arange(8), torch.arange(8, 16)):
            assert work.take_step(*data.batch(samples, scope), work.mode_now(samples.to(torch.int32))) is not None
        learned.append([*work.parameters.weights, *work.parameters.biases, *work.buffers.values()])
    for one_by_one, together in zip(*learned, strict=True):
        assert torch.allclose(one_by_one, together, atol=1e-3)
    assert any(bool((weight != 0).any()) for weight in learned[0])
