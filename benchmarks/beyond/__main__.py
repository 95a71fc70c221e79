"""The tables of docs/beyond.md, from the lines in benchmarks/beyond/results.

    afaf reproduce all --experiments benchmarks/beyond/experiments --results benchmarks/beyond/results
    python -m benchmarks.beyond

The first command does the runs that are missing; the second writes each table between its two marks, where the page has them: the results
of afaf-plus, and a table for each further experiment that has lines of its own.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from afaf.evaluation.metrics import average_incremental_accuracy
from afaf.runs.job import Job
from afaf.runs.setup import costs_and_size_of
from afaf.sweeps.experiments import Experiment, Planned, read_experiments
from afaf.sweeps.store import Key, Line, Store, read_lines

HERE, PAGE = Path(__file__).parent, Path("docs/beyond.md")
MAIN, FURTHER = ("paper-network", "resnet18", "narrower"), ("ablation", "reuse", "transfer", "equal-width", "controls", "orders")
PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
Row = tuple[Planned, list[Line]]  # a run, and the lines of it and of those that differ from it in their seed alone


def main() -> None:
    experiments = read_experiments(HERE / "experiments")
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), experiments, HERE / "results"), encoding="utf-8")


def with_tables(page: str, experiments: Iterable[Experiment], results: Path) -> str:
    """The page with the tables of these experiments between its marks."""
    lines, planned = Store(results).read(), {one.name: one for one in experiments}
    for line in in_no_table(planned.values(), lines):
        print(f"in no table: {line['stream']}, {line['method']}, {line['settings']}, seed {line['seed']}")
    page = between_marks(page, "results", main_table(row for name in MAIN if name in planned for row in rows_of(planned[name], lines)))
    for name in FURTHER:
        own = results / f"{name}.jsonl"
        if name in planned and own.exists() and any(read_lines(own)):
            page = between_marks(page, name, variants_table(rows_of(planned[name], lines)))
    return page


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
        settings = ", ".join(f"{name}={value}" for name, value in run.settings.items()) or "the preset"
        done = finished(lines)
        incremental = spread(average_incremental_accuracy(line["R"]) for line in done)
        measured = [of(done, "acc"), incremental, of(done, "acc_task_il"), sizes(run, done), seconds(done), commits(lines)]
        cells.append([run.stream, run.method, settings, seeds(lines), *measured])
    return table("stream, method, settings, seeds, ACC, average incremental, task-IL, size, seconds, commit", cells)


def variants_table(rows: Iterable[Row]) -> str:
    """Rows by the names that the experiment gives its variants."""
    cells = []
    for run, lines in rows:
        variant = run.variant if run.variant.startswith(run.method) else f"{run.method}: {run.variant}"
        done = finished(lines)
        flops = distinct([(line.get("costs") or {}).get("counted_flops_ratio") for line in done], 3)
        weights = distinct([line["params"] / 1e6 for line in done], 2)
        measured = [of(done, "acc"), of(done, "acc_task_il"), weights, sizes(run, done), flops, seconds(done), commits(lines)]
        cells.append([run.stream, variant, seeds(lines), *measured])
    return table("stream, variant, seeds, ACC, task-IL, million weights, size, counted FLOPs / dense, seconds, commit", cells)


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


def sizes(run: Planned, lines: Iterable[Line]) -> str:
    """None for a line of a network that the run would not have today."""
    params, relative = size(*run.key[:3])
    return distinct([relative if line["params"] == params else None for line in lines], 2)


@cache
def size(stream: str, method: str, settings: str) -> tuple[int, float]:
    """Weights of the model; and its bytes, everything in its file counted, over those of the weights of the dense network.

    That has its usual width and one output row a class. `settings` are JSON.
    """
    costs, model = costs_and_size_of(Job(stream, method, settings=json.loads(settings)))
    return costs.params, model.model_bytes_ratio


if __name__ == "__main__":
    main()
