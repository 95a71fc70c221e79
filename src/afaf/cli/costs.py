"""Costs of methods on a stream, side by side or one in detail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from afaf.api import costs
from afaf.costing.predict import Costs
from afaf.errors import AfafError, ConfigError
from afaf.methods import method_names

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
    "/ dense: divided by what the dense network has or computes. Training on the whole stream and one answer are in FLOPs: by paper is "
    "the paper's estimate, by task the same with each task charged for its own images only, counted counts live connections alone. Kept "
    "between tasks: bytes besides the weights."
)


def show_costs(
    console: Console,
    stream: str,
    method: str | None,
    *,
    all_methods: bool,
    settings: Sequence[str],
    config: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Print the costs of one method, or of all of them."""
    if all_methods == (method is not None):
        raise ConfigError("name a method, or ask for all of them with --all")
    if method is not None:
        found = costs(stream, method, config=config, settings=settings, data=data)
        if as_json:
            print(json.dumps(found.to_dict()))
        else:
            console.print(detail_table(found))
        return
    compared, refused = compare_costs(stream, settings=settings, config=config, data=data)
    if as_json:
        print(json.dumps({"stream": stream, "methods": {name: found.to_dict() for name, found in compared.items()}, "refused": refused}))
        return
    console.print(side_by_side(stream, list(compared.values())))
    for name, reason in refused.items():
        console.print(f"{name}: {reason}", soft_wrap=True, highlight=False, markup=False)


def compare_costs(
    stream: str, *, settings: Sequence[str] = (), config: Path | None = None, data: Path | None = None
) -> tuple[dict[str, Costs], dict[str, str]]:
    """The costs of every method that fits the stream, and why the others do not."""
    compared: dict[str, Costs] = {}
    refused: dict[str, AfafError] = {}
    for name in method_names():
        try:
            compared[name] = costs(stream, name, config=config, settings=settings, data=data)
        except AfafError as error:
            refused[name] = error
    if not compared:
        raise next(iter(refused.values()))
    return compared, {name: str(error) for name, error in refused.items()}


def detail_table(found: Costs) -> Table:
    table = Table(title=f"{found.stream}: {found.method}", show_header=False)
    table.add_row("#params (weights owned after the last task)", f"{found.params:,}", f"{found.params_ratio:.4f}x dense")
    table.add_row("#params of the dense network", f"{found.dense_params:,}", "")
    table.add_row("training FLOPs, paper's estimate", *_flops(found.paper_flops, found.paper_flops_ratio))
    if found.paper_flops_by_task != found.paper_flops:
        table.add_row(
            "the same, each task charged for its own samples", *_flops(found.paper_flops_by_task, found.paper_flops_by_task_ratio)
        )
    table.add_row("training FLOPs, live connections counted", *_flops(found.counted_flops, found.counted_flops_ratio))
    table.add_row("training FLOPs of the dense network", f"{found.dense_flops:.5e}", "")
    table.add_row("FLOPs of one answer", *_flops(found.inference_flops, found.inference_flops_ratio))
    table.add_row("kept between tasks besides the weights", in_bytes(found.kept_bytes), ", ".join(found.kept) or "nothing")
    return table


def side_by_side(stream: str, compared: Sequence[Costs]) -> Table:
    narrow = (0, 1, 0, 0)  # so that 80 columns hold it
    title = f"{stream}: what each method costs"
    table = Table(title=title, caption=CAPTION, box=box.SIMPLE_HEAD, pad_edge=False, padding=narrow, caption_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for found in compared:
        ratios = (found.paper_flops_ratio, found.paper_flops_by_task_ratio, found.counted_flops_ratio, found.inference_flops_ratio)
        table.add_row(
            found.method,
            f"{found.params:,}",
            f"{found.params_ratio:.3f}",
            *("-" if r is None else f"{r:.3f}" for r in ratios),
            in_bytes(found.kept_bytes) if found.kept else "-",
        )
    return table


def in_bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _flops(value: float | None, ratio: float | None) -> tuple[str, str]:
    return ("-", "no formula in the paper") if value is None or ratio is None else (f"{value:.4e}", f"{ratio:.4f}x dense")
