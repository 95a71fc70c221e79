"""The preset of `afaf-plus`. docs/beyond.md says how each choice was made."""

from __future__ import annotations

import inspect
from typing import Any

from afaf.evaluation.activations import activation_count
from afaf.evaluation.router import Router
from afaf.methods.base import Method
from afaf.network.spec import NetworkSpec
from afaf.network.zoo import describe, find_network
from afaf.streams.tasks import Outline

IMAGES, IMAGES_WIDE = 400_000, 600_000  # that a task is learned from, epochs taken together; by the stream's own network, by others
FEWEST_EPOCHS, MOST_EPOCHS = 10, 100
FILTERS, FILTERS_WIDE, PATCH = 256, 128, 6  # of the router,
IMAGES_PER_FILTER = 16  # and fewer for few images
WIDE_PARTS = {"mirror": True, "contrastive": 0.5, "activations": True}  # measured on ResNet-18 alone


def is_plus(method: type[Method[Any]]) -> bool:
    """Whether a method is afaf-plus, or derives from it."""
    return any(getattr(kind, "name", "") == "afaf-plus" for kind in method.__mro__)


def plus_table(outline: Outline, own: str, network: str, width: int | None, named: bool = True) -> dict[str, Any]:
    """How afaf-plus learns a stream: each task gets its share of every layer, and all pairs among these neurons.

    The stream's own network keeps its width. Another gets the width with which all tasks together, with everything that is kept, are no
    larger than the dense network of its usual width, unless it comes from a program (not `named`).
    """
    wide = network != own
    filters = max(1, min(FILTERS_WIDE if wide else FILTERS, sum(outline.train_counts) // IMAGES_PER_FILTER))
    table: dict[str, Any] = {
        "network": {"name": network, "norm": "each", "dropout": 0.0},
        "learn": {
            "epochs": min(max(FEWEST_EPOCHS, (IMAGES_WIDE if wide else IMAGES) // max(outline.train_counts)), MOST_EPOCHS),
            "batch_size": 128,
            "lr": 0.1,
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": 5e-4,
            "schedule": "one-cycle",
            "warmup": 20.0,
        },
        "sparse": {"alloc": {"all": 10000 // len(outline) / 100}, "density": {"all": 100.0}, "fixed": {"all": 100.0}},
        "parts": {"rotations": True, "router": "ridge", "filters": filters, **(WIDE_PARTS if wide else {})},
        "method": {"strict": True, "l_reuse": 1, "first_reuse": len(outline) + 2},
        "run": {"precision": "bf16"},
    }
    if wide and named and width is None and "width" in inspect.signature(find_network(network)).parameters:
        table["network"]["width"] = wide_enough(network, outline)
    return table


def wide_enough(network: str, outline: Outline) -> int:
    """The largest width, a multiple of the number of tasks, with which everything kept takes no more than the network's usual size."""
    n_tasks, usual = len(outline), inspect.signature(find_network(network)).parameters["width"].default

    def spec(width: int | None) -> NetworkSpec:
        return describe(network, outline.input_shape, outline.n_classes, norm="each", width=width)

    budget = 4 * spec(None).dense_params
    router, channels, classes = Router(FILTERS_WIDE, PATCH), outline.input_shape[0], outline.n_classes
    for each in range(usual, 1, -1):
        wide = spec(each * n_tasks)
        read = activation_count(wide, {s: wide.layer(s).size // n_tasks for s in wide.hidden_groups})
        beside = 4 * router.params(channels, classes, read) + router.kept_bytes(classes, n_tasks, read) + 4 * classes
        owners = 2 * sum(edge.inputs * edge.outputs for edge in wide.edges)
        norms = 16 * sum(wide.layer(layer).size for layer in wide.normed_layers)
        if 4 * wide.dense_params // n_tasks + owners + norms + beside <= budget:
            return each * n_tasks
    return int(usual)
