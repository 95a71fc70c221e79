"""The page of runs that differ in stream, method or settings: run folders as the lines of a folder of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from afaf.errors import RunError
from afaf.report.measured import Measured
from afaf.report.page import Page
from afaf.report.results_page import measured_page
from afaf.report.run_page import costs_of_run, relevant_settings
from afaf.runs.folder import read_json
from afaf.runs.results import Results
from afaf.sweeps.store import Line, key_of, numbers_of


def differ_only_in_seed(folders: Sequence[Path]) -> bool:
    first, *others = (relevant_settings(read_json(folder / "config.json")) for folder in folders)
    _check_seeds(folders)
    return all(settings == first for settings in others)


def comparison_page(folders: Sequence[Path]) -> Page:
    measured = measured_runs(folders)
    footer = f"Made by afaf report from {len(folders)} run folders; nothing is loaded from elsewhere."
    return measured_page(measured, "Runs compared", footer, base="first")


def measured_runs(folders: Sequence[Path]) -> Measured:
    """Run folders as lines. Of runs of one stream and method the first is the base; the others name the settings that differ from its."""
    bases: dict[tuple[str, str], dict[str, Any]] = {}
    costs: dict[tuple[str, str, str], Any] = {}
    lines: list[Line] = []
    for folder in folders:
        results, settings = Results.from_dict(read_json(folder / "results.json")), relevant_settings(read_json(folder / "config.json"))
        base = bases.setdefault((results.stream, results.method), settings)
        changed = {name: settings.get(name) for name in {**base, **settings} if settings.get(name) != base.get(name)}
        key = key_of(results.stream, results.method, changed, results.seed)
        if key[:3] not in costs:
            found = costs_of_run(folder, results)
            costs[key[:3]] = None if found is None else asdict(found)
        head = {"stream": results.stream, "method": results.method, "settings": changed, "seed": results.seed}
        more = {"class_names": results.class_names, "costs": costs[key[:3]], "seconds": results.seconds, "device": results.device}
        lines.append({**head, **numbers_of(results), **more})
    return Measured(lines)


def _check_seeds(folders: Sequence[Path]) -> None:
    """Refuse to average runs that are alike in everything, the seed too."""
    seen: dict[str, Path] = {}
    for folder in folders:
        about = read_json(folder / "config.json")
        alike = repr(sorted({**relevant_settings(about), "seed": about["seed"]}.items(), key=str))
        if alike in seen:
            raise RunError(
                f"{seen[alike]} and {folder} do not differ in their seed, {about['seed']}, or in anything else: name one of them"
            )
        seen[alike] = folder
