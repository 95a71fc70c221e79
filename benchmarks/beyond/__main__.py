"""The table of docs/beyond.md, from the lines in benchmarks/beyond/results.

    afaf reproduce paper-network resnet18 ablation reuse --experiments benchmarks/beyond/experiments --results benchmarks/beyond/results
    python -m benchmarks.beyond

The first command does the runs that are missing; the second writes the table between the two marks of the page.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from afaf.evaluation.metrics import average_incremental_accuracy
from afaf.network.zoo import describe
from afaf.streams.benchmarks import outline_of

HERE, PAGE = Path(__file__).parent, Path("docs/beyond.md")
MARKS = "<!-- results -->", "<!-- end of results -->"


def main() -> None:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for path in sorted((HERE / "results").glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            settings = ", ".join(f"{name}={value}" for name, value in line["settings"].items())
            groups[line["stream"], line["method"], settings].append(line)
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{table(groups)}\n\n{MARKS[1]}{after}", encoding="utf-8")


def table(groups: dict[tuple[str, str, str], list[dict[str, Any]]]) -> str:
    rows = ["| stream | method | settings | seeds | ACC | average incremental | task-IL | size | seconds | commit |"]
    rows.append("|---" * 10 + "|")
    for (stream, method, settings), lines in groups.items():
        done = [line for line in lines if line.get("acc") is not None]
        seeds, commits = sorted(line["seed"] for line in done), sorted({line["commit"][:7] for line in done})
        measured = [spread([line[name] for line in done]) for name in ("acc", "acc_task_il")]
        cells = [stream, method, settings or "the preset", ", ".join(map(str, seeds)), measured[0]]
        cells += [spread([average_incremental_accuracy(line["R"]) or 0.0 for line in done]), measured[1], f"{size(done[0]):.2f}"]
        alone = [line["seconds"] for line in done if line["jobs_at_once"] == 1]  # runs side by side say nothing about one
        cells += [f"{statistics.median(alone):.0f}" if alone else "-", ", ".join(commits)]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def size(line: dict[str, Any]) -> float:
    """Bytes of weights and of everything else that is kept, over those of the weights of the dense network of its usual width."""
    outline, name = outline_of(line["stream"]), line["settings"].get("network.name")
    dense = line["dense_params"] if name is None else describe(name, outline.input_shape, outline.n_classes).dense_params
    return float((4 * line["params"] + line["costs"]["kept_bytes"]) / (4 * dense))


if __name__ == "__main__":
    main()
