"""A network and the parts beside it (rotations, mirror, router) as one module, from pixels to logits and probabilities, for export."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from afaf.evaluation.by_task import predictor_by_task
from afaf.lifelong.model import Lifelong
from afaf.storage.compacted import FromPixels, Inference, InferenceModule


class PartsModule(nn.Module):
    """Answers as the model does, with a network for inference of all output rows, or with one for each task where that is less work."""

    def __init__(self, inference: Inference, model: Lifelong, *, dense: bool = False):
        super().__init__()
        model = model.copy(torch.device("cpu"))
        learner = model.learner
        network = learner.network if dense else predictor_by_task(learner)
        if network is learner.network:
            network = InferenceModule(inference).logits
        self.prepare, self.temperature = FromPixels(inference), inference.temperature
        self.answer = model.parts.predictor(learner, network)
        self.known = torch.tensor(list(model.life.known.values()))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.answer(self.prepare(images))[:, self.known]
        return logits, torch.softmax(logits / self.temperature, 1)
