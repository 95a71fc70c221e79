"""`python -m paper.method_tables` prints the tables of docs/methods.md: actions of the methods, and costs on each built-in stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from afaf.costing.predict import Costs
from afaf.methods import BUILT_IN
from afaf.runs.job import Job
from afaf.runs.setup import costs_of
from afaf.streams.benchmarks import BENCHMARKS

ACTIONS = {  # what a method adds, updates, fixes and reuses when a task arrives: the paper's Table 1, in words
    "afaf": (
        "sparse, from l_reuse on",
        "the task's own connections",
        "old weights, important neurons, all below l_reuse",
        "yes: per class, the neurons that respond to it",
    ),
    "afaf-plus": ("all pairs among neurons of the task's own", "the task's own connections", "every neuron used", "no, with its preset"),
    "spacenet": ("sparse, between free neurons", "the task's own connections", "old weights and important neurons", "no"),
    "packnet": ("dense on the free weights, then pruned", "the task's own weights", "old weights", "no: all old weights take part"),
    "ewc": ("dense, with the first task", "all weights", "nothing; changes are penalised", "no: all is shared and moves on"),
    "mas": ("dense, with the first task", "all weights", "nothing; changes are penalised", "no: all is shared and moves on"),
    "lwf": ("dense, with the first task", "all weights", "nothing; changed answers are penalised", "no: all is shared and moves on"),
    "finetune": ("dense, with the first task", "all weights", "nothing", "no: all is shared and moves on"),
    "joint": ("dense", "all weights", "nothing", "-"),
    "isolated": ("sparse, between neurons of the task's own", "the task's own weights", "old weights and all of their neurons", "no"),
    "ridge": (
        "dense, with the first task; a head",
        "after the first task the head alone",
        "all weights but the head",
        "the first task's features, all of them",
    ),
}


def methods_tables() -> str:
    """Return all tables as Markdown, without training or data."""
    parts = [_table(("method", "adds", "updates", "fixes", "reuses"), [(name, *ACTIONS[name]) for name in BUILT_IN])]
    for stream in (name for name, benchmark in BENCHMARKS.items() if not benchmark.illustration):
        parts.append(f"### {stream}\n\n{costs_table([costs_of(Job(stream, name)) for name in BUILT_IN])}")
    return "\n\n".join(parts)


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
