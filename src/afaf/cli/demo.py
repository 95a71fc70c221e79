"""The demonstration: five tasks of two digits each, learned one after the other by plain fine-tuning, AFAF, ridge and afaf-plus."""

from __future__ import annotations

import itertools
from pathlib import Path

from rich.console import Console
from rich.table import Table

from afaf.api import run
from afaf.cli.progress import ProgressDisplay
from afaf.report.page import write_report
from afaf.runs.results import Results

STREAM = "split-digits"
METHODS = ("finetune", "afaf", "ridge", "afaf-plus")


def demonstrate(console: Console, display_console: Console, out: Path | None, device: str) -> None:
    """Run the methods, print what they remember, and say where the pictures are."""
    folder = out or next(place for n in itertools.count(1) if not (place := Path("runs") / f"demo-{n}").exists())
    console.print(
        "Handwritten digits arrive in five tasks: {0, 1}, then {2, 3}, ... {8, 9}.\n"
        "After each task its images are gone. In the end one network must tell all\n"
        "ten digits apart, with no hint which task an image is from.\n",
        highlight=False,
    )
    results: dict[str, Results] = {}
    with ProgressDisplay(display_console) as display:
        for method in METHODS:
            results[method] = run(STREAM, method, seed=0, device=device, out=folder / method, resume=True, on_event=display.on_event)
    console.print(memory_table(results))
    tuned, plain = results["afaf"].acc, results["finetune"].acc
    if tuned is not None and plain:
        console.print(
            f"\nFine-tuning remembers the last task only. AFAF is right on {tuned:.1f} % of all\n"
            f"digits, {tuned / plain:.1f} times as many, with {results['afaf'].params:,} of the network's\n"
            f"{results['afaf'].dense_params:,} weights. Chance is 10 %. ridge is a closed-form control without\n"
            f"sub-networks; afaf-plus goes beyond the paper (docs/beyond.md).\n",
            highlight=False,
        )
    console.print(f"which neurons and connections each task took: {folder / 'afaf' / 'ledger.png'}", soft_wrap=True, highlight=False)
    console.print(f"accuracy on each task over time:              {folder / 'afaf' / 'r-matrix.png'}", soft_wrap=True, highlight=False)
    console.print(f"the whole run as one page:                    {write_report(folder / 'afaf')}", soft_wrap=True, highlight=False)


def memory_table(results: dict[str, Results]) -> Table:
    """Accuracy on each task after the last one."""
    table = Table(title="accuracy (%) after the last task, no task label given")
    table.add_column("method")
    first = next(iter(results.values()))
    for number, names in enumerate(first.class_names, 1):
        table.add_column(f"task {number}\n{', '.join(names)}", justify="right")
    table.add_column("mean", justify="right")
    table.add_column("seconds", justify="right")
    for method, result in results.items():
        numbers = ["-" if value is None else f"{value:.1f}" for value in result.R[-1]]
        table.add_row(method, *numbers, f"{result.acc:.1f}", f"{result.seconds:.1f}")
    return table
