"""A closed-form head beside the network, which helps to tell tasks apart.

A ridge regression on patches (`heads/patches.py`), and optionally on the activations of the first task's neurons (`activations.py`), is
computed from sums over the images of all classes so far. So it separates tasks well; the network separates the classes of a task well. The
score of a class is  logit / (spread of the logits) + weight x ridge.

Each task holds out some of its training images to choose the weight that makes their labels most likely, each weight with its best softmax
temperature, among all classes known when the task was learned. The first task does not count, because there is no other task yet. A few
images cannot separate similar weights, and too low a weight costs more than too high a one: of all weights within two standard errors of
the best, the largest is taken. Only mean log-likelihoods and their covariance are kept, no image.

The sums of a removed class lose its mean and its count, so that the class can be learned again under a new id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.evaluation.activations import first_task_activations
from afaf.evaluation.self_labels import over_mirror
from afaf.exact import exact_on
from afaf.heads import ridge
from afaf.heads.calibration import minimum
from afaf.heads.patches import feature_count, patch_features, whitened_filters
from afaf.heads.sums import Sums, packed_bytes
from afaf.randomness import generator
from afaf.training.learner import Learner
from afaf.training.named import Named, keep_tensors, kept_tensors
from afaf.training.task_data import TaskData

MEMORY, FILTERS, HEAD = "router", "router_filters", "router_head"
WEIGHTS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)
START = 2.0  # the weight before the second task
LOWEST = -1e30  # the head's score of a class without images; finite, because differences and multiples of it are computed
ENOUGH = 40  # held-out images of a task from which the likeliest weight is taken as it is
Features = Callable[[Tensor], Tensor]


def log_likelihoods(scores: Tensor, labels: Tensor) -> Tensor:
    """(images): the labels' log-likelihoods with the softmax temperature that makes them likeliest, on the host.

    Labels are smoothed as if one more image with a random label had been held out: a few right answers do not prove that all are right.
    """
    scores, labels, doubt = scores.cpu().double(), labels.cpu(), 1 / (len(labels) + 1)
    temperature = minimum(lambda log_t: float(F.cross_entropy(scores / 10**log_t, labels, label_smoothing=doubt)))
    return -F.cross_entropy(scores / temperature, labels, label_smoothing=doubt, reduction="none")


def choose_weight(likelihood: Tensor, covariance: Tensor) -> float:
    """The largest weight whose likelihood is at most two standard errors below the best.

    `covariance[i, j]` is the covariance of the likelihoods of the i-th and the j-th weight. It is 0 if all tasks held out enough images:
    then the best weight is taken, of equal ones the smallest.
    """
    if not bool(likelihood.any()):
        return START
    best = int(likelihood.argmax())
    behind, variance = likelihood[best] - likelihood, covariance.diagonal()
    error = (variance[best] + variance - 2 * covariance[best]).clamp(min=0).sqrt()
    able = behind <= 2 * error if bool(covariance.any()) else torch.arange(len(likelihood)) == best
    return WEIGHTS[int(torch.nonzero(able).max())]


def _covariance(each: Tensor) -> Tensor:
    """The covariance of the columns' means over images; of a single image, the products of its values."""
    if len(each) == 1:
        return each.T @ each
    return torch.cov(each.T) / len(each)


@dataclass(frozen=True)
class Router:
    """The head's sums, its weights and the likelihoods, all in `learner.memory`."""

    filters: int
    patch: int
    network: bool = False  # the first task's neurons give features, too

    @torch.no_grad()
    def learn(self, learner: Learner, data: TaskData, held_out: TaskData | None, predict: Callable[[Tensor], Tensor]) -> None:
        """Add a task: its features to the sums, its held-out images to the likelihoods. `predict` gives the network's logits of classes."""
        memory = learner.memory
        if f"weights/{FILTERS}" not in memory:
            filters = whitened_filters(data, self.filters, self.patch, generator(learner.seed, "router"))
            memory[f"weights/{FILTERS}"], memory[f"biases/{FILTERS}"] = filters
        features = self._features(learner)
        sums = add_images(_sums(memory, data.device), features, data)
        self._solve(learner, sums)
        logits = torch.cat([predict(x) for x in (held_out or data).batches()])
        self._add_spread(learner, logits)
        if held_out is not None:
            self._judge(learner, held_out, logits, torch.nonzero(sums.counts)[:, 0].to(held_out.device))
            sums = add_images(sums, features, held_out)
            self._solve(learner, sums)
        _keep_sums(memory, sums)

    def remove(self, learner: Learner, class_id: int) -> None:
        """Take a class out of the sums and out of the head, whose scores of other classes stay until a task is learned."""
        memory = learner.memory
        if (sums := _sums(memory, learner.network.device)) is not None:
            _keep_sums(memory, sums.emptied(class_id))
            row = torch.tensor([class_id], device=learner.network.device)
            memory[f"weights/{HEAD}"] = memory[f"weights/{HEAD}"].index_fill(0, row, 0.0)
            memory[f"biases/{HEAD}"] = memory[f"biases/{HEAD}"].index_fill(0, row, LOWEST)

    def predictor(self, learner: Learner, predict: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """A function from images to the combined scores of the classes that `predict` scores.

        Those of classes that are yet to come are the lowest. The network as it was after an earlier task scores fewer than the head.
        """
        if f"weights/{HEAD}" not in learner.memory:
            return predict
        head_of = self._head(learner)
        spread = learner.memory[f"{MEMORY}/spread"].mean().item()
        weight = choose_weight(*judged(learner.memory))

        def answer(x: Tensor) -> Tensor:
            logits = predict(x)
            head = head_of(x)[:, : logits.shape[1]]
            scores = logits[:, : head.shape[1]] / spread + weight * head
            return F.pad(scores, (0, logits.shape[1] - scores.shape[1]), value=float(torch.finfo(scores.dtype).min))

        return answer

    def _head(self, learner: Learner) -> Features:
        """A function from images to the head's scores of all classes so far."""
        features, memory = self._features(learner), learner.memory
        weights, bias = memory[f"weights/{HEAD}"], memory[f"biases/{HEAD}"]
        return over_mirror(lambda x: F.linear(features(x), weights, bias), learner)

    def _add_spread(self, learner: Learner, logits: Tensor) -> None:
        """Add the spread of the task's logits to those of the tasks before it."""
        own = sorted({row // learner.outputs_per_class for row in learner.classes_of[learner.tasks_learned]})
        values = logits[:, own].cpu().double()
        spread = values.std().clamp(min=1e-6).reshape(1) if values.numel() > 1 else values.new_ones(1)  # one image of one class
        before = learner.memory.get(f"{MEMORY}/spread", spread[:0]).cpu()  # on the device in a run that goes on after a stop
        learner.memory[f"{MEMORY}/spread"] = torch.cat([before, spread])

    def _judge(self, learner: Learner, held_out: TaskData, logits: Tensor, known: Tensor) -> None:
        """Add how likely each weight makes the labels of the task's held-out images, among the classes `known`: those with images."""
        memory, head_of = learner.memory, self._head(learner)
        likelihood, covariance = judged(memory)
        if learner.tasks_learned > 1:
            head = torch.cat([head_of(x) for x in held_out.batches()])[:, known]
            scaled, places = logits[:, known] / memory[f"{MEMORY}/spread"].mean().item(), torch.searchsorted(known, held_out.labels)
            each = torch.stack([log_likelihoods(scaled + weight * head, places) for weight in WEIGHTS], 1)
            likelihood = likelihood + each.mean(0)
            covariance = covariance + _covariance(each) if len(each) < ENOUGH else covariance
        memory[f"{MEMORY}/likelihood"], memory[f"{MEMORY}/covariance"] = likelihood, covariance

    def _solve(self, learner: Learner, sums: Sums) -> None:
        head, network = ridge.solve(sums, balance=False), learner.network
        for name, tensor in ((f"weights/{HEAD}", head.weights), (f"biases/{HEAD}", head.bias.clamp(min=LOWEST))):
            learner.memory[name] = tensor.to(network.device, network.dtype).contiguous()

    def _features(self, learner: Learner) -> Features:
        filters, biases = learner.memory[f"weights/{FILTERS}"], learner.memory[f"biases/{FILTERS}"]
        if not self.network:
            return lambda x: patch_features(x, filters, biases)
        activations = first_task_activations(learner)
        return lambda x: torch.cat([patch_features(x, filters, biases), activations(x)], 1)

    # Costs; `activations` is the number of features from the first task's neurons.

    def params(self, channels: int, classes: int, activations: int = 0) -> int:
        return self.filters * channels * self.patch**2 + (feature_count(self.filters) + activations) * classes

    def kept_bytes(self, classes: int, tasks: int, activations: int = 0) -> int:
        return packed_bytes(feature_count(self.filters) + activations, classes) // 2 + 8 * (tasks + len(WEIGHTS) + len(WEIGHTS) ** 2)

    def flops(self, shape: tuple[int, ...], classes: int, activations: int = 0) -> int:
        """Of one answer."""
        channels, height, width = shape
        places = (height - self.patch + 1) * (width - self.patch + 1)
        return 2 * places * self.filters * channels * self.patch**2 + 2 * (feature_count(self.filters) + activations) * classes


@torch.no_grad()
def add_images(sums: Sums | None, features: Features, data: TaskData) -> Sums:
    """The sums with these images among them, and with the mirror images of those that are flipped while they are learned."""
    classes = max(0 if sums is None else sums.classes, int(data.labels.max()) + 1)
    for samples in torch.arange(len(data), device=data.device).split(512):
        x, labels = data.batch(samples)
        views = [(x, labels)]
        if data.augments and bool((flipped := data.augmented(samples)).any()):
            views.append((x[flipped].flip(3), labels[flipped]))
        for view, of_view in views:
            more = Sums.of(features(view), of_view, classes)
            sums = more if sums is None else sums + more
    assert sums is not None, "a task has images"
    return sums


def judged(memory: Named) -> tuple[Tensor, Tensor]:
    """Mean likelihoods of the held-out images so far, and their covariance, on the host; zeros if there are none yet."""
    empty = {"likelihood": torch.zeros(len(WEIGHTS)), "covariance": torch.zeros(len(WEIGHTS), len(WEIGHTS))}
    likelihood, covariance = (memory.get(f"{MEMORY}/{name}", zeros).cpu().double() for name, zeros in empty.items())
    if likelihood.dim() > 1:  # by weight and temperature, as earlier versions stored them
        return likelihood.max(1).values, empty["covariance"].double()
    return likelihood, covariance


def _keep_sums(memory: Named, sums: Sums) -> None:
    keep_tensors(memory, MEMORY, {name: tensor.float() for name, tensor in sums.to_tensors().items()})  # half the bytes


def _sums(memory: Named, device: torch.device) -> Sums | None:
    kept = kept_tensors(memory, MEMORY)
    if "gram" not in kept:
        return None
    return Sums.from_tensors({name: kept[name].cpu().double() for name in ("counts", "totals", "gram")}).to(exact_on(device))
