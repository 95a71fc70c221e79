"""The tables of docs/beyond.md and docs/beyond-choices.md, from the lines in benchmarks/beyond/results.

    afaf reproduce all --experiments benchmarks/beyond/experiments --results benchmarks/beyond/results
    python -m benchmarks.beyond

The first command does the runs that are missing; the second writes the table of each experiment between its two marks, on the page that has
them, with the runs that are still missing below it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from afaf.evaluation.metrics import average_incremental_accuracy
from afaf.files import write_whole
from afaf.runs.job import Job
from afaf.runs.setup import ModelSize, costs_and_size_of
from afaf.sweeps.experiments import Experiment, Planned, read_experiments, seeds_by
from afaf.sweeps.store import Key, Line, Store

HERE = Path(__file__).parent
PAGES = tuple(HERE.parents[1] / "docs" / name for name in ("beyond.md", "beyond-choices.md"))
RESULTS = {"results": ("paper-network", "resnet18"), "narrower": ("narrower",)}  # tables of afaf-plus: marks -> experiments
VARIANTS = ("ablation", "reuse", "transfer", "equal-width", "controls", "orders")  # tables of variants, each of one experiment
PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
Row = tuple[Planned, list[Line]]  # a run, and the lines of it and of those that differ from it in their seed alone


def main() -> None:
    experiments, lines = read_experiments(HERE / "experiments"), Store(HERE / "results").read()
    texts = {page: with_tables(page.read_text(encoding="utf-8"), experiments, lines) for page in PAGES}
    for page, text in texts.items():  # all are made before any is written
        write_whole(page, text.encode())
    for line in in_no_table(experiments, lines):
        print(f"in no table: {line['stream']}, {line['method']}, {line['settings']}, seed {line['seed']}")


def with_tables(page: str, experiments: Iterable[Experiment], lines: Mapping[Key, Line]) -> str:
    """The page with the tables of these experiments between its marks."""
    planned = {one.name: one for one in experiments}
    for marks, names in RESULTS.items():
        page = between_marks(page, marks, of_experiments([planned[name] for name in names], lines, main_table))
    for name in VARIANTS:
        page = between_marks(page, name, of_experiments([planned[name]], lines, variants_table))
    return page


def of_experiments(experiments: Sequence[Experiment], lines: Mapping[Key, Line], write: Callable[[Iterable[Row]], str]) -> str:
    """Their table, where its lines come from, and which of their runs are missing."""
    rows = [row for experiment in experiments for row in rows_of(experiment, lines)]
    parts = [write(rows), f"Commits: {commits(line for _, of_run in rows for line in of_run)}."] if rows else []
    missing = [run for experiment in experiments for run in experiment.missing(lines)]
    return "\n\n".join([*parts, f"Not yet measured: {named(missing)}."] if missing else parts)


def named(runs: Iterable[Planned]) -> str:
    """Runs in words, with the seeds of those that differ in nothing else together."""
    found = seeds_by(lambda run: f"{run.stream}, {run.variant}", runs)
    return "; ".join(f"{what} ({'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))})" for what, seeds in found.items())


def between_marks(page: str, name: str, table: str) -> str:
    """The page with this table between the two marks of that name; as it was if they are not there."""
    before, begin, rest = page.partition(f"<!-- {name} -->")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}" if end else page


def in_no_table(experiments: Iterable[Experiment], lines: Mapping[Key, Line]) -> list[Line]:
    """The lines that no experiment asks for: its settings, or a preset, have changed since."""
    asked = {run.key for experiment in experiments for run in experiment.runs}
    return [line for key, line in lines.items() if key not in asked]


def rows_of(experiment: Experiment, lines: Mapping[Key, Line]) -> list[Row]:
    """The runs of an experiment that have lines, in its order; they may be in the file of another that shares the run."""
    rows: dict[tuple[str, ...], Row] = {}
    for run in experiment.runs:
        if run.key in lines:
            rows.setdefault(run.key[:3], (run, []))[1].append(lines[run.key])
    return list(rows.values())


def main_table(rows: Iterable[Row]) -> str:
    cells = []
    for run, lines in rows:
        done = finished(lines)
        incremental = spread(average_incremental_accuracy(line["R"]) for line in done)
        measured = [of(done, "acc"), incremental, of(done, "acc_task_il"), *of_model(run, done), seconds(done)]
        model = size(*run.key[:3])[1]
        width = distinct([line.get("width", model.width) for line in done], 0)
        cells.append([run.stream, model.network, width, seeds(lines), *measured])
    return table("stream, network, width, seeds, ACC, average incremental, task-IL, size, answer, seconds", cells)


def variants_table(rows: Iterable[Row]) -> str:
    """Rows by the names that the experiment gives its variants."""
    cells = []
    for run, lines in rows:
        variant = run.variant if run.variant.startswith(run.method) else f"{run.method}: {run.variant}"
        done = finished(lines)
        flops = distinct([(line.get("costs") or {}).get("counted_flops_ratio") for line in done], 3)
        weights = distinct([line["params"] / 1e6 for line in done], 2)
        measured = [of(done, "acc"), of(done, "acc_task_il"), weights, *of_model(run, done), flops]
        cells.append([run.stream, variant, seeds(lines), *measured])
    return table("stream, variant, seeds, ACC, task-IL, million weights, size, answer, counted FLOPs / dense", cells)


def table(headings: str, rows: Iterable[Iterable[str]]) -> str:
    names = headings.split(", ")
    first, *others = (f"| {' | '.join(cells)} |" for cells in [names, *rows])
    return "\n".join([first, "|---" * len(names) + "|", *others])


def finished(lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if line.get("acc") is not None]


def seeds(lines: Sequence[Line]) -> str:
    """The seeds that the numbers are of, and those that have none: without room, or with a loss that was not finite."""
    done = [str(line["seed"]) for line in finished(lines)]
    failed = [str(line["seed"]) for line in lines if line.get("acc") is None]
    return (", ".join(done) or "-") + (f"; failed: {', '.join(failed)}" if failed else "")


def seconds(lines: Iterable[Line]) -> str:
    """Of runs that had the GPU for themselves: runs side by side say nothing about one."""
    alone = [line["seconds"] for line in lines if line["jobs_at_once"] == 1]
    return f"{statistics.median(alone):.0f}" if alone else "-"


def commits(lines: Iterable[Line]) -> str:
    return ", ".join(sorted({line["commit"][:7] + line["commit"][40:] for line in lines}))


def of(lines: Iterable[Line], metric: str) -> str:
    return spread(line[metric] for line in lines)


def spread(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return (f"{statistics.mean(known):.1f}" if known else "-") + (f"{PLUS_MINUS}{statistics.stdev(known):.1f}" if len(known) > 1 else "")


def distinct(values: Iterable[float | None], digits: int) -> str:
    """One number where all are the same; several where a preset changed between runs."""
    return ", ".join(sorted({f"{value:.{digits}f}" for value in values if value is not None})) or "-"


def of_model(run: Planned, lines: Iterable[Line]) -> list[str]:
    """The bytes of a model and the FLOPs of its answer; none if all lines are of another network than the run would have today."""
    params, model = size(*run.key[:3])
    same = any(line["params"] == params for line in lines)
    return [f"{model.model_bytes_ratio:.2f}", f"{model.answer_ratio:.1f}"] if same else ["-", "-"]


@cache
def size(stream: str, method: str, settings: str) -> tuple[int, ModelSize]:
    """Weights of the model, and its size and work beside those of the usual dense network. `settings` are JSON."""
    costs, model = costs_and_size_of(Job(stream, method, settings=json.loads(settings)))
    return costs.params, model


if __name__ == "__main__":
    main()
