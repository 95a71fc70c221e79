"""Writes the measured tables into docs/performance.md from benchmarks/results/*.json: `python -m benchmarks.page`."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
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


def engines(files: list[tuple[str, dict[str, Any]]]) -> str:
    """The same runs on different engines: whether results can be told apart."""
    found: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for _, data in files:
        for row in data["rows"]:
            if row["method"].startswith("afaf") and row["epochs"] == 40:
                engine = row["engine"].split(",")[0]
                found.setdefault((row["stream"], row["method"], engine, row["precision"]), {})[row["seed"]] = row["acc"]
    head = "| stream | method | engine | precision | seeds | ACC |\n" + "|---" * 6 + "|\n"
    rows = []
    for (stream, method, engine, precision), by_seed in sorted(found.items()):
        accuracies = list(by_seed.values())
        spread = f" ± {stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
        rows.append(f"| {stream} | {method} | {engine} | {precision} | {len(accuracies)} | {mean(accuracies):.2f}{spread} |\n")
    return head + "".join(rows)


def epochs(data: dict[str, Any]) -> str:
    """Epochs against a dense one."""
    rows = "".join(f"| {row['what']} | {row['over_dense']:.3f} |\n" for row in data["rows"])
    seconds = {row["what"]: row["seconds"] for row in data["rows"]}
    ratio = seconds["task 3, reusing, eager engine"] / seconds["task 3, reusing"]
    ending = f"\nThe same reusing task takes the eager engine {ratio:.2f} times as long as the compact one.\n"
    return "| an epoch of | over an epoch of dense fine-tuning |\n|---|---|\n" + rows + ending


def epochs_on_gpu(data: dict[str, Any]) -> str:
    """Epochs of 10,000 images and what they are made of; the un-augmented one was taken on another engine."""
    head = "| an epoch of | s | over dense | µs a step | ahead of the steps, s |\n" + "|---" * 5 + "|\n"
    rows = [row for row in data["rows"] if "not augmented" not in row["what"]]
    return head + "".join(
        f"| {row['what']} | {row['seconds']:.3f} | {row['over_dense']:.3f} | {row['step_microseconds']:.0f} | {row['ahead']:.3f} |\n"
        for row in rows
    )


def growth(data: dict[str, Any]) -> str:
    """Seconds per task for streams of several lengths."""
    head = "| tasks | s per reusing task, median | first reusing tasks | last tasks | evaluation after the last, s | peak GB |\n"
    rows = [[row["median"], row["first"], row["last"], row["judging"][-1], row["peak_bytes"] / 1e9] for row in data["rows"]]
    lines = [
        f"| {row['tasks']} | " + " | ".join(number(value, 2) for value in cells) + " |\n"
        for row, cells in zip(data["rows"], rows, strict=True)
    ]
    longest, shortest = data["rows"][-1], data["rows"][0]
    ratio = longest["median"] / shortest["median"]
    ending = (
        f"\nA reusing task of a stream of {longest['tasks']} takes {ratio:.2f} times as long as one of a stream of {shortest['tasks']}.\n"
    )
    return head + "|---" * 6 + "|\n" + "".join(lines) + ending


def inference(data: dict[str, Any]) -> str:
    """Images a second of the learned model, whole and with the neurons left out that nothing leads to."""
    head = (
        "| runtime | network | weights | MB | images/s, one by one | images/s, batches of 64 | largest difference |\n" + "|---" * 7 + "|\n"
    )
    rows = []
    for row in data["rows"]:
        cells = [row["runtime"], row["network"], f"{row['weights']:,}", number(row["bytes"] / 1e6)]
        cells += [number(row[f"images_per_second_batch_{size}"], 0) for size in (1, 64)] + [f"{row['difference']:.1e}"]
        rows.append("| " + " | ".join(cells) + " |\n")
    return head + "".join(rows)


def checkpoints(data: dict[str, Any]) -> str:
    """A run with checkpoints over the same without."""
    head = "| checkpoints | how many | s | over none | learning waited | MB kept |\n" + "|---" * 6 + "|\n"
    return head + "".join(
        f"| {row['kind']} | {row['taken']:.0f} | {row['seconds']:.2f} | {row['over_none']:.3f} | {100 * row['stalled_share']:.2f} % "
        f"| {row['bytes_kept'] / 1e6:.1f} |\n"
        for row in data["rows"]
    )


def about(data: dict[str, Any]) -> str:
    return f"{data['device']}, torch {data['torch']}, commit {data['commit']}"


def main() -> None:
    loaded = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    runs = [(name, data) for name, data in loaded.items() if data["rows"] and "engine" in data["rows"][0]]
    parts = ["## Whole sequences on one GPU\n", sequences(runs)]
    for name, data in runs:
        note = f"; {data['note']}" if "note" in data else ""
        parts.append(f"- `{name}`: {data['device']}, torch {data['torch']}, commit {data['commit']}{note}\n")
    parts += ["\n## The same method on every engine\n\n", engines(runs)]
    if "step" in loaded:
        step = loaded["step"]
        threads = step["rows"][0].get("threads", 2)
        where = f"{threads} thread{'s' * (threads > 1)}, torch {step['torch']}, commit {step['commit']}"
        parts += [f"\n## On a CPU\n\n`python -m benchmarks.step --images {64 * step['rows'][0]['steps']}`, {where}.\n\n", epochs(step)]
    if "h200-step" in loaded:
        step = loaded["h200-step"]
        parts += [f"\n## An epoch on one GPU\n\n`python -m benchmarks.step --images 10000`, {about(step)}.\n\n", epochs_on_gpu(step)]
    for name in ("checkpoint", "h200-checkpoint"):
        if name in loaded:
            parts += [
                "\n## What checkpoints cost\n\n",
                f"`python -m benchmarks.checkpoint`, {about(loaded[name])}.\n\n",
                checkpoints(loaded[name]),
            ]
    if "growth" in loaded:
        parts += ["\n## As tasks pile up\n\n", f"`python -m benchmarks.growth`, {about(loaded['growth'])}.\n\n", growth(loaded["growth"])]
    if "inference" in loaded:
        threads = loaded["inference"]["rows"][0]["threads"]
        where = f"{threads} thread{'s' * (threads > 1)}, {about(loaded['inference'])}"
        parts += [
            f"\n## How fast a learned model answers\n\n`python -m benchmarks.inference`, {where}.\n\n",
            inference(loaded["inference"]),
        ]
    before = PAGE.read_text(encoding="utf-8").split(MARK)[0]
    PAGE.write_text(before + MARK + "\n\n" + "\n".join([parts[0], parts[1]]) + "\n" + "".join(parts[2:]), encoding="utf-8")


if __name__ == "__main__":
    main()
