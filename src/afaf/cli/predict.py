"""`afaf predict`: the classes of images, with probabilities."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from afaf.cli.answers import answers, open_ready
from afaf.cli.consoles import say
from afaf.streams.own import Unreadable
from afaf.streams.sources.class_folders import image_files
from afaf.text import csv_cell, printable_name

UNKNOWN = "unknown"


def predict_images(
    path: Path,
    sources: Sequence[Path],
    *,
    top: int,
    unknown_below: float,
    form: str,
    encoder: str | None,
    cache: Path | None,
    device: str,
    unreadable: Unreadable,
    out: Console,
    stderr: Console,
) -> None:
    """Print, for each image, the likeliest classes with their probabilities."""
    files = list(dict.fromkeys(file for source in sources for file in image_files(source)))
    model = open_ready(path, device, encoder, cache)
    read, probabilities, none_of_these = answers(path, model, [(file, "") for file in files], unreadable, stderr)
    labels = [str(label) for label in model.life.known]
    rows: list[dict[str, Any]] = []
    for i, (file, row) in enumerate(zip(read, probabilities, strict=True)):
        order = sorted(range(len(row)), key=lambda k: -row[k])[:top]
        best = [{"label": labels[k], "probability": round(float(row[k]), 6)} for k in order]
        sure = row[order[0]] >= unknown_below
        rows.append({"file": str(file), "label": labels[order[0]] if sure else UNKNOWN, "top": best})
        if none_of_these is not None:
            rows[-1]["none_of_these"] = bool(none_of_these[i])
    if form == "json":
        print(json.dumps(rows))
    elif form == "csv":
        _print_csv(rows, min(top, len(labels)))
    else:
        _print_lines(rows, out)


def _print_csv(rows: Sequence[dict[str, Any]], top: int) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    more = ["none_of_these"] if "none_of_these" in rows[0] else []
    writer.writerow(["file", "label", *(f"{name}{k}" for k in range(1, top + 1) for name in ("top", "probability")), *more])
    for row in rows:
        answers = [cell for answer in row["top"] for cell in (csv_cell(answer["label"]), answer["probability"])]
        writer.writerow([csv_cell(row["file"]), csv_cell(row["label"]), *answers, *(str(row[name]).lower() for name in more)])


def _print_lines(rows: Sequence[dict[str, Any]], out: Console) -> None:
    for row in rows:
        answers = ", ".join(f"{printable_name(answer['label'])} {answer['probability']:.3f}" for answer in row["top"])
        hint = "; perhaps none of these" if row.get("none_of_these") else ""
        say(out, f"{printable_name(row['file'])}: {printable_name(row['label'])}  ({answers}{hint})")
