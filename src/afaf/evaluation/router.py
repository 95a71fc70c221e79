"""A closed-form head beside the network, which helps to tell tasks apart.

Ridge regression on patches (see `heads/patches.py`) sees all classes so far together, through sums over images, and tells tasks apart well;
the network tells the classes of a task apart well. A class scores  logit / (spread of the logits) + weight x ridge.  The weight is chosen
from images that each task held out from its own training data: the one that makes their labels most likely among all classes known when
the task was learned, with the best of a few softmax temperatures; the first task, which has no other to be told from, does not count. Only
these mean log-likelihoods are kept, no image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.heads import ridge
from afaf.heads.patches import feature_count, patch_features, whitened_filters
from afaf.heads.sums import Sums, packed_bytes
from afaf.randomness import generator
from afaf.training.learner import Learner
from afaf.training.named import Named, keep_tensors, kept_tensors
from afaf.training.task_data import TaskData

MEMORY, FILTERS, HEAD = "router", "router_filters", "router_head"
WEIGHTS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)
FACTORS = tuple(2.0**k for k in range(-3, 6))
START = 2.0  # the weight before the second task


def _likelihood(scores: Tensor, labels: Tensor) -> Tensor:
    """(factors,): the mean of the labels' log-likelihoods, on the host."""
    each = [F.log_softmax(factor * scores.double(), 1).gather(1, labels[:, None]).mean() for factor in FACTORS]
    return torch.stack(each).cpu()


@dataclass(frozen=True)
class Router:
    """The head's sums, its weights and the likelihoods, all in `learner.memory`."""

    filters: int
    patch: int

    def learn(self, learner: Learner, data: TaskData, held_out: TaskData, predict: Callable[[Tensor], Tensor]) -> None:
        """Add a task: its features to the sums, its held-out images to the likelihoods. `predict` gives the network's logits of classes."""
        memory = learner.memory
        if f"weights/{FILTERS}" not in memory:
            filters = whitened_filters(data, self.filters, self.patch, generator(learner.seed, "router"))
            memory[f"weights/{FILTERS}"], memory[f"biases/{FILTERS}"] = filters
        sums = self._add(memory, self._sums(memory, data), data)
        self._solve(memory, sums, data)
        self._judge(learner, held_out, predict)
        sums = self._add(memory, sums, held_out)
        self._solve(memory, sums, data)
        keep_tensors(memory, MEMORY, {name: tensor.float() for name, tensor in sums.to_tensors().items()})  # half the bytes

    def predictor(self, learner: Learner, predict: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """A function from images to the combined scores of all classes; those of classes that are yet to come are the lowest."""
        if f"weights/{HEAD}" not in learner.memory:
            return predict
        likelihood, spread = learner.memory[f"{MEMORY}/likelihood"], learner.memory[f"{MEMORY}/spread"].mean().item()
        weight = WEIGHTS[int(likelihood.amax(1).argmax())] if bool(likelihood.any()) else START

        def answer(x: Tensor) -> Tensor:
            logits, head = predict(x), self._head(learner.memory, x)
            scores = logits[:, : head.shape[1]] / spread + weight * head
            return F.pad(scores, (0, logits.shape[1] - scores.shape[1]), value=float(torch.finfo(scores.dtype).min))

        return answer

    def _head(self, memory: Named, x: Tensor) -> Tensor:
        """The head's scores of all classes so far."""
        return F.linear(self._features(memory, x), memory[f"weights/{HEAD}"], memory[f"biases/{HEAD}"])

    @torch.no_grad()
    def _judge(self, learner: Learner, held_out: TaskData, predict: Callable[[Tensor], Tensor]) -> None:
        """Measure the spread of the task's logits, then how likely each weight makes the labels of its held-out images."""
        memory, images = learner.memory, torch.arange(len(held_out), device=held_out.device)
        parts = [held_out.batch(part) for part in images.split(512)]
        logits, labels = torch.cat([predict(x) for x, _ in parts]), torch.cat([y for _, y in parts])
        head = torch.cat([self._head(memory, x) for x, _ in parts])
        own = sorted({row // learner.outputs_per_class for row in learner.classes_of[learner.tasks_learned]})
        spread = logits[:, own].std().double().cpu().clamp(min=1e-6).reshape(1)
        memory[f"{MEMORY}/spread"] = torch.cat([memory.get(f"{MEMORY}/spread", spread[:0]), spread])
        scaled = logits[:, : head.shape[1]] / memory[f"{MEMORY}/spread"].mean().item()
        found = torch.stack([_likelihood(scaled + weight * head, labels) for weight in WEIGHTS])
        before = memory.get(f"{MEMORY}/likelihood", torch.zeros_like(found))
        memory[f"{MEMORY}/likelihood"] = before + found * (learner.tasks_learned > 1)

    def _add(self, memory: Named, sums: Sums, data: TaskData) -> Sums:
        """The sums with these images among them; where the task's images may be flipped, flipped ones too."""
        classes = max(sums.classes, int(data.labels.max()) + 1)
        with torch.no_grad():
            for samples in torch.arange(len(data), device=data.device).split(512):
                x, labels = data.batch(samples)
                sums = sums + Sums.of(self._features(memory, x), labels, classes)
                if data.augments:
                    sums = sums + Sums.of(self._features(memory, x.flip(3)), labels, classes)
        return sums

    def _sums(self, memory: Named, data: TaskData) -> Sums:
        kept = kept_tensors(memory, MEMORY)
        sums = Sums.from_tensors({name: kept[name].cpu().double() for name in ("counts", "totals", "gram")}) if "gram" in kept else None
        return (sums or Sums.empty(feature_count(self.filters))).to(data.device)

    def _solve(self, memory: Named, sums: Sums, data: TaskData) -> None:
        head = ridge.solve(sums, balance=False)
        for name, tensor in ((f"weights/{HEAD}", head.weights), (f"biases/{HEAD}", head.bias)):
            memory[name] = tensor.to(data.device, data.dtype).contiguous()

    def _features(self, memory: Named, x: Tensor) -> Tensor:
        return patch_features(x, memory[f"weights/{FILTERS}"], memory[f"biases/{FILTERS}"])

    # Costs.

    def params(self, channels: int, classes: int) -> int:
        return self.filters * channels * self.patch**2 + feature_count(self.filters) * classes

    def kept_bytes(self, classes: int, tasks: int) -> int:
        return packed_bytes(feature_count(self.filters), classes) // 2 + 8 * (tasks + len(WEIGHTS) * len(FACTORS))

    def flops(self, shape: tuple[int, ...], classes: int) -> int:
        """Of one answer."""
        channels, height, width = shape
        places = (height - self.patch + 1) * (width - self.patch + 1)
        return 2 * places * self.filters * channels * self.patch**2 + 2 * feature_count(self.filters) * classes
