"""The demonstration: five tasks of two digits each, learned one after the other by plain fine-tuning, AFAF, ridge and afaf-plus."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from afaf.cli.consoles import ERR, OUT, say

if TYPE_CHECKING:
    from afaf.runs.results import Results

STREAM = "split-digits"
METHODS = ("finetune", "afaf", "ridge", "afaf-plus")
WIDTH = 76  # of a line of text
KEEP = "\N{NO-BREAK SPACE}"


def demo(
    out: Annotated[Path | None, typer.Option(help="Where the demo's runs go (default: runs/demo-N).")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "cpu",
) -> None:
    """Learn handwritten digits in five tasks of two classes with finetune, afaf, ridge and afaf-plus, in under a minute."""
    from afaf.api import run
    from afaf.cli.progress import ProgressDisplay
    from afaf.report.page import write_report

    folder = out or next(place for n in itertools.count(1) if not (place := Path("runs") / f"demo-{n}").exists())
    say(
        "Handwritten digits arrive in five tasks: {0, 1}, then {2, 3}, ... {8, 9}.\n"
        "After each task its images are gone. In the end one network must tell all\n"
        "ten digits apart, with no hint which task an image is from.\n"
    )
    results: dict[str, Results] = {}
    with ProgressDisplay(ERR) as display:
        for method in METHODS:
            results[method] = run(STREAM, method, seed=0, device=device, out=folder / method, resume=True, on_event=display.on_event)
    OUT.print(memory_table(results))
    tuned, plain = results["afaf"].acc, results["finetune"].acc
    if tuned is not None and plain:
        say(f"\n{remembered(tuned, plain, results['afaf'].params, results['afaf'].dense_params)}\n")
    closed, plus = results["ridge"].acc, results["afaf-plus"].acc
    if closed is not None and plus is not None:
        say(f"{compared(closed, plus)}\n")
    say(f"which neurons and connections each task took: {folder / 'afaf' / 'ledger.png'}")
    say(f"accuracy on each task over time:              {folder / 'afaf' / 'r-matrix.png'}")
    say(f"the whole run as one page:                    {write_report(folder / 'afaf')}")


def remembered(afaf: float, plain: float, weights: int, dense: int) -> str:
    """What AFAF gains over plain fine-tuning, and with how many weights."""
    return _filled(
        f"Fine-tuning remembers the last task only. AFAF is right on {afaf:.1f}{KEEP}% of all digits, {afaf / plain:.1f} times as many, "
        f"with {weights:,} of the network's {dense:,} weights. Chance is 10{KEEP}%."
    )


def compared(ridge: float, plus: float) -> str:
    """How the closed-form control and afaf-plus compare, by the numbers in the table."""
    difference = round(ridge, 1) - round(plus, 1)
    words = "as good as" if difference == 0 else "better than" if difference > 0 else "worse than"
    return _filled(
        "ridge has no sub-networks: it adds up sums over features and solves for one linear head. On these digits, "
        f"with {ridge:.1f}{KEEP}%, it is {words} afaf-plus with {plus:.1f}{KEEP}%, which goes beyond the paper (docs/beyond.md)."
    )


def _filled(words: str) -> str:
    """Wrap words into full lines."""
    return textwrap.fill(words, WIDTH, break_on_hyphens=False).replace(KEEP, " ")


def memory_table(results: dict[str, Results]) -> Table:
    """Accuracy on each task after the last one."""
    classes = next(iter(results.values())).class_names
    headings = [*(f"task {number}\n{', '.join(names)}" for number, names in enumerate(classes, 1)), "mean", "seconds"]
    table = Table("method", *(Column(heading, justify="right") for heading in headings))
    table.title = "accuracy (%) after the last task, no task label given"
    for method, result in results.items():
        numbers = ["-" if value is None else f"{value:.1f}" for value in result.R[-1]]
        table.add_row(method, *numbers, f"{result.acc:.1f}", f"{result.seconds:.1f}")
    return table
