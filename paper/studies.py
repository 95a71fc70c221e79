"""paper/studies.md: the paper's figures, and experiments on what could explain differences."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from afaf.report.measured import Paired, Shape, minus
from afaf.sweeps.experiments import Experiment
from paper.evidence import Evidence, table
from paper.figures import FIGURES
from paper.printed import method_title, title_of

OF_THE_PAPER = {
    "main",
    "baselines",
    "candidate-share",
    "choices",
    "class-ambiguity",
    "density",
    "four-ways",
    "illustrations",
    "l-reuse",
    "levels",
    "representations",
    "selective-transfer",
}


def figures(drawn: Mapping[str, str]) -> str:
    text = "## The paper's figures\n"
    for name, figure in FIGURES.items():
        text += f"\n### {figure.title}\n\n"
        text += f"![{figure.title}](images/{drawn[name]})\n\n{figure.caption}\n" if name in drawn else "Not measured yet.\n"
    return text


def choices(e: Evidence) -> str:
    """What choices that the paper leaves open are worth, each against the default over paired seeds."""
    text = "## Choices that the paper leaves open\n\nWhat each of them is worth (`afaf reproduce choices`); the last column is ACC less "
    text += "that of the default, over paired seeds, with the 95 % interval.\n\n"
    return text + _variants(e, [experiment for experiment in e.experiments if experiment.name == "choices"])


def others(e: Evidence) -> str:
    """Experiments that no table or figure of the paper takes up."""
    text = ""
    for experiment in e.experiments:
        if experiment.name not in OF_THE_PAPER:
            text += f"## {experiment.title}\n\n`afaf reproduce {experiment.name}`; the last column is ACC less that of the preset, over "
            text += f"paired seeds, with the 95 % interval.\n\n{_variants(e, [experiment])}\n"
    return text


def _variants(e: Evidence, experiments: Sequence[Experiment]) -> str:
    """A row for each variant on each stream."""
    runs = {Shape(run.stream, run.method, run.settings).key: run for experiment in experiments for run in experiment.runs}
    named = Counter((run.stream, run.method, run.variant) for run in runs.values())
    rows = []
    for run in runs.values():
        what, default = Shape(run.stream, run.method, run.settings), Shape(run.stream, run.method)
        name = run.variant or "preset"
        if named[run.stream, run.method, run.variant] > 1:
            name += f" ({', '.join(f'{key} = {json.dumps(value)}' for key, value in run.settings.items()) or 'preset'})"
        head = title_of(run.stream), method_title(run.method), name
        found = [str(e.measured.spread(what, metric) or "-") for metric in ("acc", "bwt", "la", "acc_task_il")]
        gained = Paired.of(minus(e.measured.values(what, "acc"), e.measured.values(default, "acc")).values())
        beside = "not run yet" if e.measured.count(what) == "0" else f"{gained} (n {gained.n})" if gained and what.settings else "-"
        rows.append((*head, *found, e.measured.count(what), beside))
    headings = ("stream", "method", "variant", "ACC", "BWT", "LA", "task-IL ACC", "n", "against the preset")
    return table(headings, rows) if rows else "Not measured yet.\n"
