"""A run before anything is learned: method, settings and network, built and checked together, without images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from afaf.costing.predict import Costs
from afaf.methods.base import Method
from afaf.network.forward import Parameters
from afaf.network.spec import Layer, NetworkSpec
from afaf.network.zoo import describe, module_values, width_of
from afaf.runs.config import Config, build_config
from afaf.runs.job import Job, method_class
from afaf.runs.presets import with_presets
from afaf.streams.tasks import Outline, Stream
from afaf.training.named import state_dict


@dataclass(frozen=True)
class Setup:
    """A method, its configuration and its network for a stream: checked, nothing built yet."""

    method: Method[Any]
    config: Config
    spec: NetworkSpec  # with the output rows of the whole stream
    initial: Parameters | None = None  # the network's initial values, if not drawn from the seed

    @property
    def network_digest(self) -> str:
        """A checksum of the network's description and of the values it begins with."""
        digest = hashlib.blake2b(json.dumps(self.spec.to_dict()).encode(), digest_size=16)
        for tensor in state_dict(self.initial).values() if self.initial is not None else ():
            digest.update(tensor.float().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def first_output_rows(self, outline: Outline) -> int:
        """Output rows the network begins with: those of the whole stream, or of the first task."""
        outline = self.config.parts.outputs(outline)
        if self.config.network.outputs == "reserved":
            return outline.n_classes
        first = self.method.task_groups(len(outline))[0]
        return sum(outline.classes_per_task[task - 1] for task in first)


def set_up(
    outline: Outline, method: str | type[Method[Any]], *tables: Mapping[str, Any], network: nn.Module | tuple[Layer, ...] | None = None
) -> Setup:
    """Build and check everything that needs no data; the tables override the stream's preset, and `network` a network's name."""
    kind = method_class(method)
    config = build_config(kind.Options, *with_presets(outline, kind, tables, network))
    chosen, given = config.network, config.network.name if network is None else network
    options = {"norm": chosen.norm, "dropout_at": chosen.dropout_at, "width": chosen.width}
    outputs = config.parts.outputs(outline)
    spec = describe(given, outline.input_shape, outputs.n_classes, dropout=chosen.dropout, **options)
    built = kind(config.method, config.settings)
    config.parts.check(outline.input_shape, built.strict)
    built.check(spec, outputs)
    return Setup(built, config, spec, module_values(given, spec, **options) if chosen.weights == "module" else None)


def restrict(stream: Stream, config: Config) -> Stream:
    """The stream with at most `run.images` images a class, and with the validation part of `run.validation`."""
    if config.run.images:
        stream = stream.with_at_most(config.run.images)
    return stream.with_validation(config.run.validation) if config.run.validation else stream


@dataclass(frozen=True)
class ModelSize:
    """The network of a run, with the bytes of its whole model and the work of one answer beside those of the usual dense network.

    The usual dense network is the same architecture with its usual width, one output row per class, and all weights counted.
    """

    network: str
    width: int
    output_rows: int
    usual_width: int
    usual_dense_params: int
    model_bytes: int  # weights, biases, norms and everything kept
    model_bytes_ratio: float
    answer_ratio: float  # FLOPs of one answer


def costs_of(job: Job) -> Costs:
    """Parameters and FLOPs of a run, without training; the paper's streams need no data for it."""
    outline, setup = _set_up(job)
    return setup.config.parts.costs_of(setup.method, setup.spec, outline)


def costs_and_size_of(job: Job) -> tuple[Costs, ModelSize]:
    """The costs of a run, and the size of its model, without training."""
    outline, setup = _set_up(job)
    costs, spec = setup.config.parts.costs_of(setup.method, setup.spec, outline), setup.spec
    usual = describe(spec.name if job.network is None else job.network, outline.input_shape, outline.n_classes)
    return costs, ModelSize(
        network=spec.name,
        width=width_of(spec),
        output_rows=spec.n_classes,
        usual_width=width_of(usual),
        usual_dense_params=usual.dense_params,
        model_bytes=costs.model_bytes,
        model_bytes_ratio=costs.model_bytes / (4 * usual.dense_params),
        answer_ratio=costs.inference_flops / (2 * usual.dense_products),
    )


def _set_up(job: Job) -> tuple[Outline, Setup]:
    job.check()
    outline = job.outline()
    return outline, set_up(outline, job.method_class, *job.tables, network=job.network)
