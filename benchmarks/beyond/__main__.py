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
    rows = ["| stream | method | settings | seeds | ACC | task-IL | size | commit |", "|---|---|---|---|---|---|---|---|"]
    for (stream, method, settings), lines in groups.items():
        done = [line for line in lines if line.get("acc") is not None]
        seeds, commits = sorted(line["seed"] for line in done), sorted({line["commit"][:7] for line in done})
        cells = [stream, method, settings or "the preset", ", ".join(map(str, seeds)), spread(done, "acc"), spread(done, "acc_task_il")]
        rows.append(f"| {' | '.join(cells)} | {size(done[0]):.2f} | {', '.join(commits)} |")
    return "\n".join(rows)


def spread(lines: list[dict[str, Any]], name: str) -> str:
    values = [line[name] for line in lines]
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def size(line: dict[str, Any]) -> float:
    """Bytes of weights and of everything else that is kept, over those of the dense network's weights."""
    return float((4 * line["params"] + line["costs"]["kept_bytes"]) / (4 * line["dense_params"]))


if __name__ == "__main__":
    main()
