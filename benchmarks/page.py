"""Writes the measured tables into docs/performance.md from benchmarks/results/*.json: `python -m benchmarks.page`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS, PAGE = Path("benchmarks/results"), Path("docs/performance.md")
MARK = "<!-- measured: everything below is written by python -m benchmarks.page -->"


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def sequences(files: list[tuple[str, dict[str, Any]]]) -> str:
    """Whole sequences, one row a run."""
    head = "| stream | method | engine | precision | seed | seconds | ACC | BWT | task-IL | peak GB | from |\n" + "|---" * 11 + "|\n"
    rows = []
    for name, data in files:
        for row in data["rows"]:
            peak = None if row["peak_gpu_bytes"] is None else row["peak_gpu_bytes"] / 1e9
            cells = [row["stream"], row["method"], row["engine"], row["precision"], str(row["seed"]), number(row["seconds"])]
            cells += [number(row[key], 2) for key in ("acc", "bwt", "acc_task_il")] + [number(peak, 2), name]
            rows.append("| " + " | ".join(cells) + " |\n")
    return head + "".join(rows)


def epochs(data: dict[str, Any]) -> str:
    """Epochs against a dense one."""
    rows = "".join(f"| {row['what']} | {row['over_dense']:.3f} |\n" for row in data["rows"])
    seconds = {row["what"]: row["seconds"] for row in data["rows"]}
    ratio = seconds["task 3, reusing, eager engine"] / seconds["task 3, reusing"]
    ending = f"\nThe same reusing task takes the eager engine {ratio:.2f} times as long as the compact one.\n"
    return "| an epoch of | over an epoch of dense fine-tuning |\n|---|---|\n" + rows + ending


def growth(data: dict[str, Any]) -> str:
    """Seconds per task for streams of several lengths."""
    head = "| tasks | s per reusing task, median | first reusing tasks | last tasks | evaluation after the last, s | peak GB |\n"
    rows = [[row["median"], row["first"], row["last"], row["judging"][-1], row["peak_bytes"] / 1e9] for row in data["rows"]]
    lines = [
        f"| {row['tasks']} | " + " | ".join(number(value, 2) for value in cells) + " |\n"
        for row, cells in zip(data["rows"], rows, strict=True)
    ]
    return head + "|---" * 6 + "|\n" + "".join(lines)


def checkpoints(data: dict[str, Any]) -> str:
    """A run with checkpoints over the same without."""
    keys = [key for key in data["rows"][0] if not isinstance(data["rows"][0][key], list)]
    head = "| " + " | ".join(keys) + " |\n" + "|---" * len(keys) + "|\n"
    return head + "".join("| " + " | ".join(str(row[key]) for key in keys) + " |\n" for row in data["rows"])


def about(data: dict[str, Any]) -> str:
    return f"{data['device']}, torch {data['torch']}, commit {data['commit']}"


def main() -> None:
    loaded = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    runs = [(name, data) for name, data in loaded.items() if data["rows"] and "engine" in data["rows"][0]]
    parts = ["## Whole sequences on one GPU\n", sequences(runs)]
    for name, data in runs:
        note = f"; {data['note']}" if "note" in data else ""
        parts.append(f"- `{name}`: {data['device']}, torch {data['torch']}, commit {data['commit']}{note}\n")
    if "step" in loaded:
        step = loaded["step"]
        threads = step["rows"][0].get("threads", 2)
        where = f"{threads} thread{'s' * (threads > 1)}, torch {step['torch']}, commit {step['commit']}"
        parts += [f"\n## On a CPU\n\n`python -m benchmarks.step`, {where}.\n\n", epochs(step)]
    for name in ("checkpoint", "h200-checkpoint"):
        if name in loaded:
            parts += [
                "\n## What checkpoints cost\n\n",
                f"`python -m benchmarks.checkpoint`, {about(loaded[name])}.\n\n",
                checkpoints(loaded[name]),
            ]
    if "growth" in loaded:
        parts += ["\n## As tasks pile up\n\n", f"`python -m benchmarks.growth`, {about(loaded['growth'])}.\n\n", growth(loaded["growth"])]
    before = PAGE.read_text(encoding="utf-8").split(MARK)[0]
    PAGE.write_text(before + MARK + "\n\n" + "\n".join([parts[0], parts[1]]) + "\n" + "".join(parts[2:]), encoding="utf-8")


if __name__ == "__main__":
    main()
