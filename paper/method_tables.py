"""`python -m paper.method_tables` prints the tables of docs/methods.md: actions of the methods, and costs on each built-in stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from afaf.costing.predict import Costs
from afaf.methods import BUILT_IN, find_method
from afaf.methods.base import Actions, Method
from afaf.runs.job import Job
from afaf.runs.setup import costs_of
from afaf.streams.benchmarks import BENCHMARKS


def methods_tables() -> str:
    """Return all tables as Markdown, without training or data."""
    methods = [find_method(name) for name in BUILT_IN]
    parts = [actions_table(methods)]
    for stream in (name for name, benchmark in BENCHMARKS.items() if not benchmark.illustration):
        parts.append(f"### {stream}\n\n{costs_table([costs_of(Job(stream, name)) for name in BUILT_IN])}")
    return "\n\n".join(parts)


def actions_table(methods: Iterable[type[Method[Any]]]) -> str:
    unknown = Actions("-", "-", "-", "-")
    rows = [(method.name, method.actions or unknown) for method in methods]
    return _table(
        ("method", "adds", "updates", "fixes", "reuses"), [(name, does.adds, does.updates, does.fixes, does.reuses) for name, does in rows]
    )


def costs_table(compared: Sequence[Costs]) -> str:
    headings = ("method", "#params", "FLOPs (paper)", "by task", "FLOPs (counted)", "FLOPs an answer", "kept between tasks, bytes")
    return _table(headings, [_costs_row(costs) for costs in compared])


def _costs_row(costs: Costs) -> tuple[str, ...]:
    kept = f"{costs.kept_bytes:,} ({', '.join(costs.kept)})" if costs.kept else "0"
    return (
        costs.method,
        f"{costs.params:,} ({costs.params_ratio:.4f}×)",
        _ratio(costs.paper_flops_ratio),
        _ratio(costs.paper_flops_by_task_ratio),
        _ratio(costs.counted_flops_ratio),
        _ratio(costs.inference_flops_ratio),
        kept,
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}×"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    print(methods_tables())
