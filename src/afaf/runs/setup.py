"""A run before its data is read: method, settings and network, built and checked together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from afaf.costing.predict import Costs, predict_costs
from afaf.methods.base import Method
from afaf.network.spec import NetworkSpec
from afaf.network.zoo import describe
from afaf.runs.config import Config, build_config
from afaf.runs.job import Job, method_class
from afaf.runs.presets import with_presets
from afaf.streams.tasks import Outline, Stream


@dataclass(frozen=True)
class Setup:
    """A method, its configuration and its network for a stream: checked, nothing built yet."""

    method: Method[Any]
    config: Config
    spec: NetworkSpec  # with the output rows of the whole stream

    def first_output_rows(self, outline: Outline) -> int:
        """Output rows the network begins with: those of the whole stream, or of the first task."""
        if self.config.network.outputs == "reserved":
            return outline.n_classes
        first = self.method.task_groups(len(outline))[0]
        return sum(outline.classes_per_task[task - 1] for task in first)


def set_up(outline: Outline, method: str | type[Method[Any]], *tables: Mapping[str, Any]) -> Setup:
    """Build and check everything that needs no data; the tables override the stream's preset."""
    kind = method_class(method)
    config = build_config(kind.Options, *with_presets(outline, kind, tables))
    network = config.network
    spec = describe(
        network.name,
        outline.input_shape,
        outline.n_classes,
        norm=network.norm,
        dropout=network.dropout,
        dropout_at=network.dropout_at,
        width=network.width,
    )
    built = kind(config.method, config.settings)
    built.check(spec, outline)
    return Setup(built, config, spec)


def restrict(stream: Stream, config: Config) -> Stream:
    """The stream with at most `run.images` images a class, and with the validation part of `run.validation`."""
    if config.run.images:
        stream = stream.with_at_most(config.run.images)
    return stream.with_validation(config.run.validation) if config.run.validation else stream


def costs_of(job: Job) -> Costs:
    """Parameters and FLOPs of a run, without training; the paper's streams need no data for it."""
    job.check()
    outline = job.outline()
    setup = set_up(outline, job.method_class, *job.tables)
    return predict_costs(setup.spec, outline, setup.method)
