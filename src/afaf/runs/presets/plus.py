"""The preset of `afaf-plus`. docs/beyond-choices.md says how each choice was made."""

from __future__ import annotations

import inspect
from bisect import bisect_right
from typing import Any

from afaf.methods.base import Method
from afaf.network.zoo import describe, find_network
from afaf.runs.config import build_config
from afaf.streams.tasks import Outline
from afaf.subnets.sizes import equal_share

IMAGES, IMAGES_WIDE = 400_000, 600_000  # that a task is learned from, epochs taken together; by the stream's own network, by others
FEWEST_EPOCHS, MOST_EPOCHS = 10, 100
NEVER = 1_000_000  # the task from which on connections are reused
FILTERS, FILTERS_WIDE, PATCH = 256, 128, 6  # of the router,
IMAGES_PER_FILTER = 16  # and fewer for few images
HELD_OUT, LEAST_HELD_OUT, MOST_HELD_OUT = 0.05, 50, 0.1  # share of a task's images that choose the router's weight; a few say little
WIDE_PARTS = {"mirror": True, "contrastive": 0.5}  # measured on ResNet-18 alone
ENOUGH_TO_SERVE = 1000  # images of the first task, for its neurons to help later ones through the router


def is_plus(method: type[Method[Any]]) -> bool:
    """Whether a method is afaf-plus, or derives from it."""
    return any(getattr(kind, "name", "") == "afaf-plus" for kind in method.__mro__)


def plus_table(outline: Outline, own: str, network: str) -> dict[str, Any]:
    """How afaf-plus learns a stream: each task gets its share of every layer, and all pairs among these neurons."""
    wide = network != own
    filters = max(1, min(FILTERS_WIDE if wide else FILTERS, sum(outline.train_counts) // IMAGES_PER_FILTER))
    wide_parts = {**WIDE_PARTS, "activations": outline.train_counts[0] >= ENOUGH_TO_SERVE} if wide else {}
    held_out = min(max(HELD_OUT, LEAST_HELD_OUT / max(1, min(outline.train_counts))), MOST_HELD_OUT)
    return {
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
        "sparse": {"alloc": {"all": equal_share(len(outline))}, "density": {"all": 100.0}, "fixed": {"all": 100.0}},
        "parts": {"rotations": True, "router": "ridge", "filters": filters, "held_out": held_out, **wide_parts},
        "method": {"strict": True, "l_reuse": 1, "first_reuse": NEVER, "start_from": "previous" if wide else "random"},
        "run": {"precision": "bf16"},
    }


def wide_enough(outline: Outline, method: type[Method[Any]], network: str, tables: list[dict[str, Any]]) -> dict[str, int]:
    """The largest width, a multiple of the number of tasks, with which the whole model is no larger than the dense network of its usual
    width. Empty for a network without widths, and where no width fits: the sums of the router alone are larger than a small network.
    """
    sizes = inspect.signature(find_network(network)).parameters
    if "width" not in sizes:
        return {}
    n_tasks, usual = len(outline), sizes["width"].default
    config = build_config(method.Options, *tables)
    built, rows = method(config.method, config.settings), config.parts.outputs(outline).n_classes
    options: dict[str, Any] = {"norm": config.network.norm, "dropout_at": config.network.dropout_at}
    budget = 4 * describe(network, outline.input_shape, outline.n_classes, **options).dense_params

    def model_bytes(each: int) -> int:
        spec = describe(network, outline.input_shape, rows, **options, width=each * n_tasks)
        return config.parts.costs_of(built, spec, outline).model_bytes

    fitting = bisect_right(range(1, usual + 1), budget, key=model_bytes)
    return {"width": fitting * n_tasks} if fitting else {}
