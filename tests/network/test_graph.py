"""Networks as graphs: shapes, groups, cuts, forward passes and costs of residual networks, and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import afaf
from afaf.costing.predict import predict_costs
from afaf.errors import ConfigError
from afaf.methods import method_names
from afaf.network.ledger import Ledger
from afaf.network.net import Network
from afaf.network.ops import MaxPool, parse_operation
from afaf.network.spec import Layer, NetworkSpec
from afaf.network.zoo import NETWORKS, describe, module_values
from afaf.runs.events import Event, Warned
from afaf.runs.job import Job
from afaf.runs.runner import run
from afaf.runs.setup import set_up
from afaf.storage.compacted import InferenceModule, for_inference, random_pixels
from afaf.storage.description import Description
from afaf.storage.description import describe as describe_learner
from afaf.storage.exported import exported_program, need, onnx_bytes
from afaf.storage.invariants import broken_invariants
from afaf.storage.model_file import Model
from afaf.storage.state import build, stored_tensors
from afaf.streams.benchmarks import outline_of
from afaf.streams.tasks import Preparation
from afaf.subnets.allocate import Request, allocate_free
from afaf.subnets.sizes import sizes
from afaf.training.learner import Learner
from conftest import small_stream
from modules import Block, ResNet10, ResNeXt
from small_worlds import numbers
from worlds import World, probe, worlds


def filled(spec: NetworkSpec, seed: int = 0) -> Network:
    """A dense network whose norms are those of a trained one."""
    network, draw = Network(spec, seed=seed), torch.Generator().manual_seed(seed)
    for l in spec.edge_numbers:
        network.initialise(l, torch.ones(1, 1, 1, dtype=torch.bool))
    for norm in network.parameters.norms.values():
        for tensor in norm.tensors().values():
            tensor.copy_(torch.rand(tensor.shape, generator=draw) + 0.5)
    return network


def in_order(module: ResNet10) -> tuple[list[nn.Module], list[nn.Module]]:
    """Its products and its norms, in the order in which the graph has them."""
    products: list[nn.Module] = [module.stem]
    norms: list[nn.Module] = [module.norm]
    for block in module.blocks:
        assert isinstance(block, Block)
        products += [*block.shortcut[:1], block.conv1, block.conv2]
        norms += [*block.shortcut[1:], block.bn1, block.bn2]
    return [*products, module.head], norms


@pytest.mark.parametrize("size", [(16, 16), (21, 12)])
def test_a_resnet_computes_what_pytorch_modules_compute(size: tuple[int, int]) -> None:
    """Logits, and the gradients of all weights, in double precision."""
    spec = describe("resnet10", (3, *size), 5, width=4)
    network, module = filled(spec), ResNet10(4, 5).double().eval()
    products, norms = in_order(module)
    parameters = network.parameters
    with torch.no_grad():
        for product, weight, bias in zip(products, parameters.weights, parameters.biases, strict=True):
            product.weight.copy_(weight.reshape(product.weight.shape))  # type: ignore[operator,union-attr]
            product.bias.copy_(bias)  # type: ignore[operator]
        for made, norm in zip(norms, parameters.norms.values(), strict=True):
            state = {"weight": norm.gain, "bias": norm.shift, "running_mean": norm.mean, "running_var": norm.var}
            made.load_state_dict(state, strict=False)
    double = Network(spec, dtype=torch.float64)
    double.parameters.weights = [weight.double().requires_grad_() for weight in parameters.weights]
    double.parameters.biases = [bias.double() for bias in parameters.biases]
    for norm, ours in zip(parameters.norms.values(), double.parameters.norms.values(), strict=True):
        for a, b in zip(norm.tensors().values(), ours.tensors().values(), strict=True):
            b.copy_(a)
    x = probe(spec, torch.float64)
    expected, found = module(x), double(x)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
    expected.square().sum().backward()
    found.square().sum().backward()
    for product, weight in zip(products, double.parameters.weights, strict=True):
        assert torch.allclose(weight.grad.reshape(product.weight.shape), product.weight.grad, rtol=1e-7, atol=1e-9)  # type: ignore


def test_the_weights_of_resnet18_are_counted_exactly() -> None:
    outline = outline_of("split-cifar10")
    setup = set_up(outline, "finetune", {"network": {"name": "resnet18"}})
    assert setup.config.network.norm == "batch"
    assert predict_costs(setup.spec, outline, setup.method).dense_params == 11_164_352


@pytest.mark.parametrize("module", [ResNet10(4, 5), ResNeXt(8, 4, 5, channels=3)])
def test_costs_are_what_the_products_compute(module: nn.Module) -> None:
    """Multiplications of one answer, counted where they happen: for each product outputs x inputs x kernel, at each position."""
    spec, counted = describe(module, (3, 16, 16), 5), [0]

    def count(product: nn.Module, inputs: object, output: Tensor) -> None:
        counted[0] += product.weight.numel() * output[0, 0].numel()  # type: ignore[operator,union-attr]

    products = [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    for product in products:
        product.register_forward_hook(count)
    module(torch.randn(2, 3, 16, 16))
    assert spec.dense_params == sum(product.weight.numel() for product in products)
    assert counted[0] == sum(edge.weights * edge.positions for edge in spec.edges)


def test_groups_and_cuts_of_a_resnet() -> None:
    spec = describe("resnet10", (3, 32, 32), 10, width=4)
    assert [spec.layer(s).size for s in spec.hidden_groups] == [4, 4, 8, 8, 16, 16, 32, 32]  # a stage, its inner layer, and so on
    assert spec.last_hidden == spec.layers[-2].group
    assert spec.layer(spec.last_hidden).role == "output"
    assert {edge.role for edge in spec.edges} == {"conv", "output"}
    for l in spec.edge_numbers:
        cut = spec.cut_below(l)
        assert cut < spec.edge(l).target
        assert all(min(layer.inputs) >= cut for layer in spec.layers[cut:])


@pytest.mark.parametrize(
    ("hidden", "named"),
    [
        ((Layer("conv", 4), Layer("sum", 5, inputs=(2,))), "sum 1"),
        ((Layer("conv", 4), Layer("conv", 4), Layer("sum", 4, inputs=(2, 3))), "sum 1"),
        ((Layer("conv", 4), Layer("conv", 4, inputs=(5,))), "layer 3"),
        ((Layer("conv", 4), Layer("conv", 4, inputs=(1, 2))), "layer 3"),
        ((Layer("conv", 4, stride=2, kernel=9),), "conv 1"),
        ((Layer("conv", 4, ("tanh",)),), "conv 1.*tanh"),
        ((Layer("conv", 4, ("relu", "pool", "pool")),), "conv 1.*pool"),
        ((Layer("conv", 4, ("pool(2,2,2)",)),), "conv 1.*pool"),
        ((Layer("conv", 4, padding=1), Layer("sum", 4, inputs=(1, 2))), "layer 3"),
        ((Layer("conv", 4), Layer("conv", 6, groups=4)), "conv 2.*groups"),
        ((Layer("conv", 6), Layer("conv", 4, groups=4)), "conv 2.*groups"),
        ((Layer("dense", 6), Layer("dense", 4, groups=2)), "dense 2.*groups"),
    ],
)
def test_graphs_that_make_no_sense_are_refused(hidden: tuple[Layer, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        _ = NetworkSpec("wrong", (1, 8, 8), hidden, 2).layers


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "dens"},
        {"kind": "Conv"},
        {"neurons": 32.0},
        {"neurons": 0},
        {"ops": "relu"},
        {"kernel": 0},
        {"stride": 0},
        {"padding": -1},
        {"groups": 0},
        {"inputs": (0,)},
    ],
)
def test_a_layer_that_no_file_could_hold_cannot_be_made(wrong: dict[str, Any]) -> None:
    """Else its run would be learned to the end, and the model not read back."""
    with pytest.raises(ConfigError, match=rf"Layer\.{next(iter(wrong))}"):
        Layer(**{"kind": "conv", "neurons": 4, **wrong})


def test_a_layer_may_be_made_with_numbers_of_numpy_and_lists() -> None:
    one = np.int64(1)
    layer = Layer("conv", np.int32(8), ["relu"], 3 * one, one, 0 * one, [2 * one], one)  # type: ignore[arg-type]
    assert layer == Layer("conv", 8, ("relu",), inputs=(2,))
    assert json.loads(json.dumps(layer.to_dict())) == layer.to_dict()


def test_a_wrong_layer_ends_a_run_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "badly.py").write_text('from afaf.extend import Layer\n\ndef small():\n    return (Layer("dens", 32),)\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"badly:small.*kind.*dens"):
        afaf.run("split-digits", "finetune", settings={"network.name": "badly:small"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_operations_are_read_from_text() -> None:
    assert parse_operation("pool(3,2,1)", 0.2) == MaxPool(3, 2, 1)
    for wrong in ("pool(3)", "pool(0,1,1)", "pool(3,2,2)", "tanh", "relu(1)", "pool(a,b,c)", ""):
        with pytest.raises(ValueError, match="operation"):
            parse_operation(wrong, 0.2)


def test_a_description_survives_its_file() -> None:
    for name in NETWORKS:
        spec = describe(name, (3, 32, 32), 7)
        assert NetworkSpec.from_dict(spec.to_dict()) == spec
    assert set(describe("alexnet", (3, 32, 32), 7).to_dict()["hidden"][0]) == {"kind", "neurons", "then", "kernel"}  # as ever


ZOO = [pytest.param(describe(name, (3, 32, 32), 6, width=32).hidden, 32, marks=pytest.mark.slow, id=name) for name in NETWORKS]


@pytest.mark.parametrize(
    ("network", "side"), [(describe("resnet10", (3, 8, 8), 6, width=16).hidden, 8), (ResNeXt(24, 6, 6, channels=3), 8), *ZOO]
)
def test_a_network_is_learned_saved_and_exported(network: Any, side: int, tmp_path: Path) -> None:
    """End to end: three tasks, the last of which reuses; the file gives the same bits back, ONNX and torch the same answers."""
    stream = small_stream([2, 2, 2], per_class=6, channels=3, side=side)
    settings = {"learn": {"epochs": 1, "batch_size": 8}, "method": {"strict": True}}
    setup = set_up(stream.outline, "afaf", settings, network=network)
    learner = learn(setup, stream)
    path = tmp_path / "m.safetensors"
    Model(learner, "afaf", [list(t.class_names) for t in stream], [t.preparation for t in stream]).save(path)
    back = Model.load(path).learner
    x = probe(setup.spec)
    assert torch.equal(back.network(x), learner.network(x))
    assert all(torch.equal(a, b) for a, b in zip(numbers(back).values(), numbers(learner).values(), strict=True))
    for dense in {False, isinstance(network, ResNeXt)}:  # all neurons are a grouped convolution, the kept ones an ordinary one
        preparation, rows = Preparation((0.5,) * 3, (0.2,) * 3), {c: c for c in range(6)}
        inference = for_inference(learner, rows, preparation, bytes_in=True, dense=dense)
        pixels = random_pixels(inference, 4)
        logits, _ = InferenceModule(inference)(pixels)
        h = ((pixels.float() / 255 - 0.5) / 0.2).permute(0, 3, 1, 2)
        assert torch.allclose(logits, learner.network(h), atol=1e-4)
        assert dense or inference.weights < setup.spec.dense_params
        program = exported_program(InferenceModule(inference), pixels)
        assert torch.allclose(program.module()(pixels)[0], logits, atol=1e-4)
        if dense != isinstance(network, ResNeXt):
            continue
        pytest.importorskip("onnxruntime")
        data = onnx_bytes(program, inference.labels, {})
        session = need("onnxruntime").InferenceSession(data, providers=["CPUExecutionProvider"])
        assert torch.allclose(torch.from_numpy(session.run(["logits"], {"images": pixels.numpy()})[0]), logits, atol=1e-4)


def learn(setup, stream) -> Learner:  # type: ignore[no-untyped-def]
    from afaf.methods.base import TaskContext
    from afaf.training.compact import CompactEngine
    from afaf.training.task_data import TaskData

    learner = Learner.fresh(Network(setup.spec, seed=1), setup.method.unit)
    for task in stream:
        data = TaskData([(task.train, task.preparation)])
        context = TaskContext(task.number, task.classes, data)
        learner.begin(task.number, task.classes)
        setup.method.start(learner, context, 0)
        CompactEngine().learn(learner, setup.method.plan(learner, context, 0), data)
        setup.method.finish(learner, context)
        learner.end(task.number)
    return learner


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(worlds(reuse=True))
def test_costs_of_random_graphs_are_what_torch_counts(world: World) -> None:
    """Multiplications and additions of a dense forward pass, counted by torch, and the weights that tasks own, predicted before."""
    with FlopCounterMode(display=False) as counter:
        Network(world.spec)(torch.zeros(1, *world.spec.input_shape))
    assert counter.get_total_flops() == 2 * sum(edge.weights * edge.positions for edge in world.spec.edges)
    predicted = predict_costs(world.spec, world.stream.outline, world.method)
    assert world.owns(world.learn(), predicted.params)


@pytest.mark.parametrize("method", method_names())
def test_every_method_learns_a_graph_and_its_costs_are_exact(method: str, tmp_path: Path) -> None:
    """A depthwise and a grouped convolution, a stride, and a sum that its neurons are carried on by; no pair that does not exist moves.

    A third of the neurons, the share of afaf-plus in three tasks, are whole groups.
    """
    network = (
        Layer("conv", 24, ("norm", "relu"), padding=1),
        Layer("depthwise", 24, ("norm", "relu"), padding=1),
        Layer("conv", 24, ("norm",), kernel=1),
        Layer("sum", 24, inputs=(2, 4)),
        Layer("conv", 24, ("norm", "relu"), padding=1, groups=6),
        Layer("conv", 48, ("norm", "relu", "global-mean"), stride=2, padding=1),
    )
    settings = {"learn.epochs": 1, "learn.batch_size": 8, "learn.lr": 0.001, "learn.momentum": 0.9, "learn.weight_decay": 0.01}
    settings |= {"run.precision": "fp32"}
    stream = small_stream([2, 2, 2])
    results = run(Job(stream, method, network=network, settings=settings, device="cpu", out=tmp_path / "run"))
    assert broken_invariants(Model.load(tmp_path / "run" / "model.safetensors").learner) == []
    assert results.params == afaf.costs(stream, method, network=network, settings=settings).params


def test_a_share_that_splits_groups_gets_fewer_connections_and_says_so() -> None:
    """Neurons of a split group are left over for the third task, in groups where the task has few others to join them to."""
    network, settings = (Layer("conv", 24, padding=1), Layer("conv", 24, padding=1, groups=8)), {"learn.epochs": 1}
    stream, events = small_stream([2, 2, 2]), list[Event]()
    results = run(Job(stream, "afaf-plus", network=network, settings=settings, device="cpu"), on_event=events.append)
    assert results.params < afaf.costs(stream, "afaf-plus", network=network, settings=settings).params
    assert any(isinstance(event, Warned) for event in events)


@pytest.mark.parametrize(("groups", "outputs"), [(6, 6), (6, 12), (3, 6), (2, 8)])
def test_a_grouped_convolution_is_pytorchs(groups: int, outputs: int) -> None:
    """As a network, traced, and in its per-image gradients; depthwise if each map has a kernel of its own."""
    module = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, outputs, 3, 2, 1, groups=groups), nn.ReLU(),
        nn.Conv2d(outputs, 9, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(9, 4),
    ).eval()  # fmt: skip
    spec, depthwise = describe(module, (2, 9, 8), 4), groups == outputs
    assert spec.edge(2).shape == (outputs, 1 if depthwise else 6, 9)
    assert [edge.weights for edge in spec.edges] == [part.weight.numel() for part in module if isinstance(part, nn.Conv2d | nn.Linear)]
    assert (spec.layer(3).group == spec.layer(2).group) == depthwise
    network = Network(spec, initial=module_values(module, spec))
    for l in spec.edge_numbers:
        network.initialise(l, torch.ones(1, 1, 1, dtype=torch.bool))
    network.parameters.weights[-1].copy_(module[-1].weight.detach()[:, :, None])  # type: ignore[operator,union-attr,index]
    network.parameters.biases[-1].copy_(module[-1].bias.detach())  # type: ignore[operator,union-attr,arg-type]
    x = probe(spec)
    assert torch.allclose(network(x), module(x), atol=1e-5)
    edge, h = spec.edge(2), torch.randn(5, 6, 7, 6)
    weight = torch.randn(edge.shape, requires_grad=True)
    delta, bias = torch.randn(5, outputs, 4, 3), torch.zeros(outputs)
    each = [torch.autograd.grad((edge.forward(h[i : i + 1], weight, bias) * delta[i]).sum(), weight)[0] for i in range(5)]
    found = edge.product.sample_importance(h, delta, torch.square).reshape(edge.shape)
    assert torch.allclose(found, torch.stack(each).square().sum(0), atol=1e-4)


@given(st.data())
def test_neurons_of_a_grouped_convolution_are_drawn_together(data: st.DataObject) -> None:
    """So that the first task has as many pairs as so many neurons can have; no other choice of neurons has more."""
    groups, below, above = (data.draw(st.integers(low, 5)) for low in (2, 1, 1))
    spec = NetworkSpec("grouped", (1, 8, 8), (Layer("conv", groups * below), Layer("conv", groups * above, groups=groups)), 2)
    alloc: dict[str, Any] = {"all": data.draw(st.integers(50, 100)), "output": data.draw(st.integers(50, 100))}
    asked = sizes(spec, alloc, {"all": 100}, {"all": 0}, 1, 2)
    edge, ledger = spec.edge(2), Ledger(spec)
    found = allocate_free(Request(spec, ledger, asked, 1, (0, 1), data.draw(st.integers(0, 99)), pytest.fail))
    assert len(found.places[2]) == asked.connections[2] == edge.pairs(asked.alloc[2], asked.alloc[3])
    assert edge.exists().flatten()[found.places[2]].all()
    sources, targets = (torch.randperm(size)[: asked.alloc[s]] for s, size in ((2, edge.inputs), (3, edge.outputs)))
    assert int(edge.exists()[targets][:, sources].sum()) <= asked.connections[2]
    assert edge.pairs(edge.inputs, edge.outputs) == int(edge.exists().sum()) == edge.weights // edge.block


def test_pairs_that_do_not_exist_cannot_be_owned() -> None:
    """In the file of a model, too."""
    learner = Learner.fresh(Network(NetworkSpec("grouped", (1, 8, 8), (Layer("conv", 4), Layer("conv", 4, groups=2)), 2)))
    learner.classes_of[1] = (0, 1)
    about, tensors = Description.parse(describe_learner(learner)), stored_tensors(learner)
    build(about, tensors, torch.device("cpu"))
    with pytest.raises(ValueError, match="W_2"):
        learner.claim(2, 1, torch.ones_like(learner.ledger.owner(2), dtype=torch.bool))
    for owner in (0, 1):
        tensors["owner/2"] = torch.full_like(learner.ledger.owner(2), owner)
        with pytest.raises(ValueError, match="owner/2"):
            build(about, tensors, torch.device("cpu"))
