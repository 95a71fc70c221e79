"""Functions of a learned model whose values an experiment stores beside the accuracies (`keep` in its file)."""

from __future__ import annotations

from typing import Any

import torch

from afaf.storage.model_file import Model
from afaf.streams.tasks import Stream
from afaf.subnets.candidates import mean_activation
from afaf.training.task_data import TaskData


def ledger(model: Model, stream: Stream) -> dict[str, Any]:
    """The owner of each connection and the task that fixed each neuron, for a network small enough to draw."""
    learner = model.learner
    spec = learner.network.spec
    return {
        "layers": [layer.name for layer in spec.layers],
        "owner": [learner.ledger.owner(l).amax(2).clamp(min=0).tolist() for l in spec.edge_numbers],  # W_l: by target, by source
        "fixed": [learner.ledger.fixed(l).tolist() for l in range(1, spec.L + 1)],
        "candidates": {  # of the tasks that reuse: by task, class, layer
            str(record.task): {
                str(c.class_id): {str(l): neurons.tolist() for l, neurons in c.candidates.items()} for c in record.classes if c.candidates
            }
            for record in learner.ledger.records
        },
    }


def class_means(model: Model, stream: Stream) -> dict[str, Any]:
    """Mean activation of every class's training images in the last hidden layer of the network after task 1.

    Only the neurons that task 1 selected: no others are active then.
    """
    learner = model.learner
    then, last_hidden = learner.network.as_of(1, learner.ledger), learner.network.spec.edges[-1].source
    record = learner.ledger.record_of(1)
    size = learner.network.spec.layer(last_hidden).size
    neurons = torch.arange(size) if record is None else record.selected(then.spec, then.spec.last_hidden).cpu()
    means: dict[str, list[float]] = {}
    for task in stream:
        data = TaskData([(task.train, task.preparation)], then.device, then.dtype)
        for c, name in zip(task.classes, task.class_names, strict=True):
            activation = mean_activation(then, data.batches(class_id=c))[last_hidden].cpu()
            means[name] = [round(value, 4) for value in activation[neurons].tolist()]
    return {"neurons": neurons.tolist(), "means": means, "tasks": [list(task.class_names) for task in stream]}
