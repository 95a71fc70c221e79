"""`afaf evaluate`: how right a model is on a folder of labelled images."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from afaf.cli.answers import evaluated, open_ready
from afaf.cli.consoles import say
from afaf.files import check_output, write_output
from afaf.lifelong.evaluate import Evaluation
from afaf.report.evaluation_page import CLASS_HEADINGS, class_rows, evaluation_page
from afaf.streams.own import Unreadable, find_class_folders


def evaluate_model(
    path: Path,
    folder: Path,
    *,
    html: Path | None,
    encoder: str | None,
    cache: Path | None,
    device: str,
    unreadable: Unreadable,
    as_json: bool,
    force: bool,
    out: Console,
    stderr: Console,
) -> None:
    if html is not None:
        check_output(html, "html", [path], force=force)
    files = find_class_folders(folder).files
    evaluation = evaluated(path, open_ready(path, device, encoder, cache), files, unreadable, stderr)
    if html is not None:
        text = evaluation_page(path, folder, evaluation).html()
        write_output(html, "html", text.encode(), [path], force=force)
    if as_json:
        print(json.dumps(asdict(evaluation)))
        return
    _show(evaluation, out)
    if html is not None:
        say(out, f"wrote {html}")


def _show(evaluation: Evaluation, out: Console) -> None:
    say(out, f"{evaluation.accuracy:.1f} % of {evaluation.images} images are right; calibration error {evaluation.calibration_error:.3f}")
    if evaluation.unknown is not None:
        say(out, f"{evaluation.unknown:.1f} % are called unknown")
    table = Table(*CLASS_HEADINGS)
    for row in class_rows(evaluation):
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    out.print(table)
    for call in evaluation.calls:
        say(out, f"classes of call {call['call']}: {call['accuracy']:.1f} % of {call['images']} images")
    if evaluation.never_right:
        say(out, f"never right: {', '.join(evaluation.never_right)}")
    for image in evaluation.worst[:3]:
        say(out, f"{image['file']}: {image['label']}, answered {image['answer']} with probability {image['probability']:.2f}")
