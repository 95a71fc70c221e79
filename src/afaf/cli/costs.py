"""Costs of methods on a stream, side by side or one in detail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from afaf.cli.consoles import OUT, say
from afaf.cli.options import ConfigOption, DataOption, JsonOption, SetOption, StreamName
from afaf.errors import AfafError, ConfigError

if TYPE_CHECKING:
    from afaf.costing.predict import Costs
    from afaf.runs.setup import ModelSize

HEADINGS = (
    "method",
    "weights\nowned",
    "weights\n/ dense",
    "training\nby paper\n/ dense",
    "training\nby task\n/ dense",
    "training\ncounted\n/ dense",
    "answer\n\n/ dense",
    "kept\nbetween\ntasks",
)
CAPTION = (
    "/ dense: divided by what the dense network has or computes, of the width and the output rows that the method's network has. Training "
    "on the whole stream and one answer are in FLOPs: by paper is the paper's estimate, by task the same with each task charged for its "
    "own images only, counted counts live connections alone. Kept between tasks: bytes besides the weights."
)


def costs(
    stream: StreamName,
    method: Annotated[str | None, typer.Argument(help="A method: `afaf methods` lists them; or give --all.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All methods, side by side.")] = False,
    set_: SetOption = [],
    config: ConfigOption = None,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Predict the costs of a method on a stream, or of all with --all: weights, FLOPs, bytes kept between tasks. Nothing is trained."""
    from afaf.methods import method_names, method_of_command
    from afaf.runs.job import Job
    from afaf.runs.setup import costs_and_size_of

    if all_ == (method is not None):
        raise ConfigError("name a method, or ask for all of them with --all")
    if method is not None:
        predicted, size = costs_and_size_of(Job(stream, method_of_command(method), settings=set_, config=config, data=data))
        if json_:
            print(json.dumps(predicted.to_dict() | asdict(size)))
        else:
            OUT.print(detail_table(predicted, size))
        return
    compared: dict[str, tuple[Costs, ModelSize]] = {}
    refused: dict[str, AfafError] = {}  # methods that do not fit the stream
    for name in method_names():
        try:
            compared[name] = costs_and_size_of(Job(stream, name, settings=set_, config=config, data=data))
        except AfafError as error:
            refused[name] = error
    if not compared:
        raise next(iter(refused.values()))
    if json_:
        tables = {name: predicted.to_dict() | asdict(size) for name, (predicted, size) in compared.items()}
        print(json.dumps({"stream": stream, "methods": tables, "refused": {name: str(reason) for name, reason in refused.items()}}))
        return
    OUT.print(side_by_side(stream, [predicted for predicted, _ in compared.values()]))
    for name, reason in refused.items():
        say(f"{name}: {reason}")


def detail_table(predicted: Costs, size: ModelSize) -> Table:
    title = f"{predicted.stream}: {predicted.method}"
    table = Table(title=title, caption=which_dense(size), caption_justify="left", show_header=False)
    table.add_row("network", escape(size.network), f"width {size.width}, {size.output_rows} output rows")
    table.add_row(
        "whole model: weights, biases, norms and all that is kept", in_bytes(size.model_bytes), f"{size.model_bytes_ratio:.4f}x usual dense"
    )
    table.add_row("#params of the usual dense network", f"{size.usual_dense_params:,}", in_bytes(4 * size.usual_dense_params))
    table.add_row("#params (weights owned after the last task)", f"{predicted.params:,}", f"{predicted.params_ratio:.4f}x dense")
    table.add_row("#params of the dense network", f"{predicted.dense_params:,}", "")
    table.add_row("training FLOPs, paper's estimate", *_flops(predicted.paper_flops, predicted.paper_flops_ratio))
    if predicted.paper_flops_by_task != predicted.paper_flops:
        table.add_row(
            "the same, each task charged for its own samples", *_flops(predicted.paper_flops_by_task, predicted.paper_flops_by_task_ratio)
        )
    table.add_row("training FLOPs, live connections counted", *_flops(predicted.counted_flops, predicted.counted_flops_ratio))
    table.add_row("training FLOPs of the dense network", f"{predicted.dense_flops:.5e}", "")
    table.add_row("FLOPs of one answer", f"{predicted.inference_flops:.4e}", f"{size.answer_ratio:.4f}x usual dense")
    table.add_row("kept between tasks besides the weights", in_bytes(predicted.kept_bytes), ", ".join(predicted.kept) or "nothing")
    return table


def which_dense(size: ModelSize) -> str:
    return (
        f"usual dense: all weights of {escape(size.network)} with its usual width, {size.usual_width}, and one output row a class. dense: "
        "of the network above, with its width and its output rows."
    )


def side_by_side(stream: str, compared: Sequence[Costs]) -> Table:
    narrow = (0, 1, 0, 0)  # to fit 80 columns
    title = f"{stream}: what each method costs"
    table = Table(title=title, caption=CAPTION, box=box.SIMPLE_HEAD, pad_edge=False, padding=narrow, caption_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for predicted in compared:
        ratios = (
            predicted.paper_flops_ratio,
            predicted.paper_flops_by_task_ratio,
            predicted.counted_flops_ratio,
            predicted.inference_flops_ratio,
        )
        table.add_row(
            predicted.method,
            f"{predicted.params:,}",
            f"{predicted.params_ratio:.3f}",
            *("-" if r is None else f"{r:.3f}" for r in ratios),
            in_bytes(predicted.kept_bytes) if predicted.kept else "-",
        )
    return table


def in_bytes(count: int) -> str:
    """With three digits, so that tables fit 80 columns; rich.filesize has four."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _flops(value: float | None, ratio: float | None) -> tuple[str, str]:
    return ("-", "no formula in the paper") if value is None or ratio is None else (f"{value:.4e}", f"{ratio:.4f}x dense")
