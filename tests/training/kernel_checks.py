"""The Triton kernels against the plain operations they stand for: on a GPU, or anywhere in Triton's interpreter (TRITON_INTERPRET=1).

Not collected by itself, since the interpreter must be chosen before Triton is imported: `test_kernels.py` runs it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.network.ops import Norm
from afaf.randomness import keep_at
from afaf.streams.tasks import Preparation, Split
from afaf.training.cuda import kernels
from afaf.training.cuda.kernels import Draw, LossBuffers
from afaf.training.optimisers import SGD, AdamW, Optimiser
from afaf.training.task_data import RngScope, TaskData

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LR = torch.tensor([0.1], device=DEVICE)  # read from memory, so that a captured step can be given another
RATE, KEY = 0.2, (12345, -777)
HALF = [torch.bfloat16] if DEVICE == "cuda" else []  # whose products the interpreter gets wrong


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


def some(*shape: int) -> Tensor:
    return (random(*shape) > 0).float()


@pytest.mark.parametrize(
    ("shape", "pool", "drop", "by_neuron"),
    [
        ((3, 4, 4, 5), True, True, True),
        ((2, 5, 7, 20), True, False, False),
        ((70, 1, 1, 33), False, True, False),
        ((2, 3, 3, 70), False, False, True),
    ],
)
def test_activation_and_its_gradients(shape: tuple[int, ...], pool: bool, drop: bool, by_neuron: bool) -> None:
    """Bias, ReLU, dropout, pool; odd sizes, of which a pool leaves out the last row or column; neurons through which nothing passes."""
    n, height, width, neurons = shape
    z, bias, grad_mask = random(*shape).requires_grad_(), random(neurons).requires_grad_(), some(neurons)
    samples = torch.arange(7, 7 + n, dtype=torch.int32, device=DEVICE)
    numbers = torch.arange(3, 3 + 2 * neurons, 2, dtype=torch.int32, device=DEVICE)
    draw = Draw(torch.tensor(KEY, dtype=torch.int32, device=DEVICE), samples, numbers, RATE) if drop else None
    expected = F.relu(z + bias).permute(0, 3, 1, 2)
    if drop:
        kept = keep_at(KEY, RATE, samples, numbers, height * width)
        expected = expected * (kept.float() / (1 - RATE)).reshape(n, neurons, height, width)
    if pool:
        expected = F.max_pool2d(expected, 2)
    expected = expected.permute(0, 2, 3, 1)
    above = random(*expected.shape)
    expected.backward(above)
    h, winner = kernels.activate(z.detach(), bias.detach(), draw, pool, by_neuron)
    scale = 1 / (1 - RATE) if drop else 1.0
    below, parts = kernels.deactivate(above, winner if pool else h, grad_mask, scale, pool, z.shape)
    assert z.grad is not None
    assert bias.grad is not None
    assert h.permute(0, 3, 1, 2).is_contiguous() == (by_neuron or z.shape[1:3] == (1, 1))
    assert torch.allclose(h, expected, atol=1e-6)
    assert torch.allclose(below, z.grad * grad_mask, atol=1e-6)
    assert parts is not None
    assert torch.allclose(kernels.add_up(parts), bias.grad * grad_mask, atol=1e-4)
    moved, moving = bias.detach().clone(), some(neurons)
    expected_bias = bias.detach() - LR * moving * bias.grad * grad_mask
    kernels.move_bias(kernels.Move(moved, moving, LR), parts)
    assert torch.allclose(moved, expected_bias, atol=1e-5)
    moved = bias.detach().clone()
    below, parts = kernels.deactivate(above, winner if pool else h, grad_mask, scale, pool, z.shape, kernels.Move(moved, moving, LR))
    assert torch.allclose(below, z.grad * grad_mask, atol=1e-6)
    assert parts is not None or torch.allclose(moved, expected_bias, atol=1e-5)


def test_what_is_not_a_number_is_not_lost() -> None:
    z = torch.zeros(1, 2, 2, 3, device=DEVICE)
    z[0, 0, 1, 2] = float("nan")
    for pool in (True, False):
        h, _ = kernels.activate(z, torch.zeros(3, device=DEVICE), None, pool)
        assert bool(h.isnan().any())


@pytest.mark.parametrize(
    ("shape", "relu", "choose"), [((3, 5, 5, 8), True, False), ((70, 1, 1, 24), False, True), ((2, 40, 40, 72), True, True)]
)
def test_norm_and_its_gradients(shape: tuple[int, ...], relu: bool, choose: bool) -> None:
    """Bias, batch norm, ReLU: some neurons by the batch's statistics and others by their running ones, which then stay; some cut off."""
    neurons = shape[-1]
    z, bias = random(*shape) * 3 + 50, random(neurons)  # a mean far from 0 must not cost precision
    gain, shift = random(neurons) + 1, random(neurons)
    by_batch, cut = some(neurons) if choose else None, some(neurons)
    mean, var = random(neurons) + 50, random(neurons).square() + 1
    chosen = torch.ones(neurons, device=DEVICE) if by_batch is None else by_batch
    exact = [tensor.double().requires_grad_() for tensor in (z, shift, gain, bias)]
    rows = (exact[0] + exact[3]).flatten(0, 2)
    rows.register_hook(lambda gradient: gradient * cut)
    batch = (rows.mean(0), rows.var(0, unbiased=False))
    used_mean, used_var = (torch.where(chosen > 0, mine, running) for mine, running in zip(batch, (mean, var), strict=True))
    expected = ((rows - used_mean) / (used_var + 1e-5).sqrt() * exact[2] + exact[1]).reshape(shape)
    expected = F.relu(expected) if relu else expected
    above = random(*shape)
    expected.backward(above.double())
    norm = Norm(gain, shift, mean.clone(), var.clone())
    result = kernels.normalise(z, bias, norm, by_batch, relu)
    below, small = kernels.normalise_backward(above, z, result.used, gain, shift, by_batch, cut, relu)
    assert torch.allclose(result.h.double(), expected, atol=1e-4)
    for new, old, of_batch in ((norm.mean, mean, batch[0]), (norm.var, var, rows.var(0))):
        assert torch.allclose(new.double(), torch.where(chosen > 0, 0.9 * old + 0.1 * of_batch, old), rtol=1e-5)
    for found, leaf in zip((below, *small), exact, strict=True):
        assert leaf.grad is not None
        assert torch.allclose(found.double(), leaf.grad, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("channels", "maps"), [(3, 20), (1, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_the_first_layer_looks_at_images(channels: int, maps: int, dtype: torch.dtype) -> None:
    images, weight = random(5, channels, 9, 8).to(dtype).float(), by_block(random(maps, channels, 9).to(dtype).float()).requires_grad_()
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    bias, grad_mask = random(maps).requires_grad_(), some(maps)
    expected = F.relu(F.conv2d(images, weight.reshape(maps, channels, 3, 3), bias)).permute(0, 2, 3, 1)
    above = random(*expected.shape).to(dtype)
    expected.backward(above.float())
    assert weight.grad is not None
    assert bias.grad is not None
    assert kernels.can_fuse_first_conv(images, weight)
    compute_weight = weight.detach().to(dtype)
    h = kernels.first_conv(images.to(dtype), compute_weight, bias.detach())
    weights, biases = kernels.first_conv_backward(images.to(dtype), compute_weight, above, h, grad_mask)
    assert torch.allclose(h.float(), expected, **close)
    assert torch.allclose(weights, weight.grad * grad_mask[:, None, None], **close)
    assert torch.allclose(biases, bias.grad * grad_mask, **close)


@pytest.mark.parametrize("channels", [1, 3])
def test_crops_are_those_of_the_feed(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 9, 11, channels), dtype=np.uint8)
    preparation = Preparation((0.5,) * channels, (0.25,) * channels, augment="crop-flip")
    data = TaskData([(Split(pixels, np.zeros(40, dtype=np.int64)), preparation)], DEVICE)
    scope, samples = RngScope(3, 1, 0, 2), torch.arange(39, -1, -1, device=DEVICE)
    assert kernels.can_crop(data)
    assert torch.allclose(kernels.crops(data, samples, scope, torch.float32), data.batch(samples, scope)[0], atol=1e-5)


def test_a_batch_is_fetched_from_where_the_cursor_stands() -> None:
    features, labels = random(50, 3, 40), torch.arange(50, device=DEVICE)
    samples, cursor = labels.flip(0).to(torch.int32), torch.tensor([7, 1], device=DEVICE)
    for found, whole in zip(kernels.fetch(cursor, 20, features, labels, samples), (features, labels, samples), strict=True):
        assert torch.equal(found, whole[7:27])


def by_block(tensor: Tensor) -> Tensor:
    """(outputs, inputs, block) with the inputs next to each other in memory."""
    return tensor.permute(0, 2, 1).contiguous().permute(0, 2, 1)


@pytest.mark.parametrize(("block", "by_weight", "inputs_last"), [(9, False, True), (1, False, False), (36, True, True), (36, False, False)])
def test_update_and_importance(block: int, by_weight: bool, inputs_last: bool) -> None:
    """With a second gradient and a clipping factor; connections or single weights as units, in either order in memory."""
    outputs, inputs, lr, scale = 3, 20, LR, torch.tensor(0.5, device=DEVICE)
    weight, gradient, more = random(outputs, inputs, block), random(outputs, inputs, block), random(inputs, outputs, block).transpose(0, 1)
    moving = some(outputs, inputs, block if by_weight else 1)
    connections, history = random(*moving.shape).abs(), random(*moving.shape).abs()
    if inputs_last:
        weight, moving, connections, history = (by_block(tensor) for tensor in (weight, moving, connections, history))
    compute_weight = torch.zeros_like(weight, dtype=torch.bfloat16)
    moved = (gradient + more) * moving * scale
    expected_weight, gained = weight - lr * moved, lr * moved.square()
    expected_connections = connections + (gained if by_weight else gained.sum(2, keepdim=True))
    expected_history = history + expected_connections
    kernels.update(weight, compute_weight, gradient, more, moving, lr, scale, (connections, history))
    assert torch.allclose(weight, expected_weight, atol=1e-6)
    assert torch.allclose(compute_weight.float(), weight, rtol=2**-7)  # the interpreter cuts off where a GPU rounds
    assert torch.allclose(connections, expected_connections, atol=1e-5)
    assert torch.allclose(history, expected_history, atol=1e-5)


@pytest.mark.parametrize(
    "optimiser",
    [SGD(0.9), SGD(0.9, True, 0.1), SGD(weight_decay=0.1), AdamW(weight_decay=0.1)],
    ids=["momentum", "nesterov", "decay", "adamw"],
)
@pytest.mark.parametrize("by_weight", [False, True])
def test_updates_of_other_optimisers(optimiser: Optimiser, by_weight: bool) -> None:
    """Two steps against the plain operations: weight, buffers, importance."""
    shape, scale = (3, 20, 9), torch.tensor(0.5, device=DEVICE)
    weight, moving = by_block(random(*shape)), by_block(some(3, 20, 9 if by_weight else 1))
    connections, history, compute = torch.zeros_like(moving), torch.zeros_like(moving), torch.zeros_like(weight)
    buffers = [torch.zeros_like(weight) for _ in optimiser.buffers]
    expected, expected_buffers, total = weight.clone(), [buffer.clone() for buffer in buffers], torch.zeros_like(moving)
    for step in (1, 2):
        gradient, numbers = random(3, 20, 9 + step)[:, :, step:], optimiser.coefficients(0.1 / step, step)
        gained = optimiser.update(expected, gradient * moving * scale, moving, expected_buffers, numbers, True)
        assert gained is not None
        total += gained if by_weight else gained.sum(2, keepdim=True)
        coefficients = torch.tensor(numbers, device=DEVICE)
        kernels.update(weight, compute, gradient, None, moving, coefficients, scale, (connections, history), optimiser, buffers)
    for found, wanted in [(weight, expected), (compute, expected), (connections, total), *zip(buffers, expected_buffers, strict=True)]:
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("proximal", [False, True])
@pytest.mark.parametrize("inputs_last", [False, True])
def test_weights_held_by_springs(proximal: bool, inputs_last: bool) -> None:
    """More weights than a tile holds; the gradient lies otherwise in memory than they do."""
    shape, lr, strength, scale = (30, 20, 9), LR, 3.0, torch.tensor(0.5, device=DEVICE)
    weight, importance, anchor = random(*shape), random(*shape).square(), random(20, 30, 9).transpose(0, 1).contiguous()
    if inputs_last:
        weight, importance, anchor = by_block(weight), by_block(importance), by_block(anchor)
    gradient, compute_weight = random(9, 20, 30).permute(2, 1, 0), torch.zeros_like(weight)
    leaf = weight.clone().requires_grad_()
    energy = strength / 2 * (importance * (leaf - anchor).square()).sum()
    energy.backward()
    assert leaf.grad is not None
    whole = gradient if proximal else gradient + leaf.grad
    expected = weight - lr * scale * whole
    if proximal:
        pull = lr * strength * importance
        expected = (expected + pull * anchor) / (1 + pull)
    held = kernels.WeightPenalty(strength, importance, anchor, proximal)
    square, found = kernels.penalty_grad_norm(gradient, weight, held)
    assert torch.allclose(square, whole.square().sum(), rtol=1e-4)
    assert torch.allclose(found, torch.zeros_like(found) if proximal else energy.detach(), rtol=1e-4)
    assert torch.allclose(kernels.penalty_grad_norm(gradient, weight, None)[0], gradient.square().sum(), rtol=1e-4)
    kernels.penalised_step(weight, compute_weight, gradient, held, lr, scale)
    assert torch.allclose(weight, expected, atol=1e-5)
    assert torch.equal(compute_weight, weight)


@pytest.mark.parametrize("images", [70, 16])
def test_connections_of_one_weight_learn_in_one_pass(images: int) -> None:
    """More images than are added up at once, and fewer."""
    outputs, inputs, lr = 40, 150, LR
    above, h, weight = random(images, outputs), random(images, inputs), random(outputs, inputs, 1)
    moving = some(outputs, inputs, 1)
    connections, history = random(outputs, inputs, 1).abs(), random(inputs, outputs, 1).abs().transpose(0, 1).contiguous()
    compute_weight = weight.clone()
    moved = (above.t() @ h).view_as(weight) * moving
    expected_weight, expected_connections = weight - lr * moved, connections + lr * moved.square()
    expected_history = history + expected_connections
    kernels.learn(above, h, weight, compute_weight, moving, lr, (connections, history))
    for found, expected in [
        (weight, expected_weight),
        (compute_weight, weight),
        (connections, expected_connections),
        (history, expected_history),
    ]:
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_listed_connections_move_alone() -> None:
    outputs, inputs, block, lr = 5, 7, 36, LR
    weight, gradient = random(outputs, inputs, block), random(outputs, inputs, block + 1)[:, :, 1:]
    moving = some(outputs, inputs, 1)
    connections, history = random(outputs, inputs, 1).abs(), random(outputs, inputs, 1).abs()
    compute_weight = weight.clone()
    expected_weight = weight - lr * gradient * moving
    expected_connections = connections + lr * (gradient * moving).square().sum(2, keepdim=True)
    expected_history = history + expected_connections * moving
    kernels.update_listed(torch.nonzero(moving.flatten()).flatten(), weight, compute_weight, gradient, lr, (connections, history))
    for found, expected in [
        (weight, expected_weight),
        (compute_weight, weight),
        (connections, expected_connections),
        (history, expected_history),
    ]:
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("counted", [10, 6])
def test_cross_entropy_with_rows_that_rest(counted: int) -> None:
    classes, images, rows = 10, 50, torch.tensor([4, 5], device=DEVICE)
    z, bias, resting = random(images, 2).requires_grad_(), random(2).requires_grad_(), random(classes)
    labels = rows[(random(images) > 0).long()]
    in_loss = (torch.arange(classes, device=DEVICE) < counted).to(torch.int32)
    logits = resting.repeat(images, 1).index_copy(1, rows, z + bias).masked_fill(in_loss[None] == 0, -torch.inf)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    place = torch.full((classes,), -1, dtype=torch.int32, device=DEVICE)
    place[rows] = torch.arange(2, dtype=torch.int32, device=DEVICE)
    step = torch.tensor([1], device=DEVICE)
    buffers = LossBuffers(place, in_loss, resting, step, torch.zeros(3, device=DEVICE), torch.zeros(3, dtype=torch.int32, device=DEVICE))
    gradient, bias_gradient = kernels.fused_cross_entropy(z.detach(), bias.detach(), labels, buffers)
    assert z.grad is not None
    assert bias.grad is not None
    assert bias_gradient is not None
    assert torch.allclose(gradient, z.grad, atol=1e-6)
    assert torch.allclose(bias_gradient, bias.grad, atol=1e-5)
    moved, moving = bias.detach().clone(), torch.tensor([1.0, 0.0], device=DEVICE)
    assert kernels.fused_cross_entropy(z.detach(), moved, labels, replace(buffers, moving=moving, lr=LR))[1] is None
    assert torch.allclose(moved, bias.detach() - LR * moving * bias.grad, atol=1e-5)
    assert torch.allclose(buffers.losses[1], loss, atol=1e-5)
    assert int(buffers.right[1]) == int((logits.argmax(1) == labels).sum())
