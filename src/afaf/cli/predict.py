"""`afaf predict`: the classes of images, with probabilities."""

from __future__ import annotations

import csv as comma_separated
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from afaf.cli.consoles import say
from afaf.cli.options import CacheOption, DeviceOption, EncoderOption, ModelOption, SkipOption
from afaf.errors import ConfigError
from afaf.text import csv_cell, printable_name

UNKNOWN = "unknown"  # as a label in JSON and CSV; for people:
NONE = "none of these"


def predict(
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    model: ModelOption,
    top: Annotated[int, typer.Option(help="How many of the likeliest classes to show.", min=1)] = 3,
    unknown_below: Annotated[
        float,
        typer.Option(
            help="Answer none of these where no class is at least so probable (label `unknown` in JSON and CSV).", min=0.0, max=1.0
        ),
    ] = 0.0,
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    encoder: EncoderOption = None,
    cache: CacheOption = None,
    device: DeviceOption = "auto",
    skip_unreadable: SkipOption = False,
) -> None:
    """Say which of the learned classes images are of, with probabilities."""
    from afaf.cli.answers import answers, open_ready
    from afaf.streams.sources.class_folders import image_files

    if json_ and csv:
        raise ConfigError("--json and --csv exclude each other")
    files = list(dict.fromkeys(file for source in images for file in image_files(source)))
    opened = open_ready(model, device, encoder, cache)
    read, probabilities, none_of_these = answers(model, opened, [(file, "") for file in files], skip_unreadable)
    labels = [str(label) for label in opened.life.known]
    rows: list[dict[str, Any]] = []
    for i, (file, row) in enumerate(zip(read, probabilities, strict=True)):
        order = sorted(range(len(row)), key=lambda k: -row[k])[:top]
        best = [{"label": labels[k], "probability": round(float(row[k]), 6)} for k in order]
        sure = row[order[0]] >= unknown_below
        rows.append({"file": str(file), "label": labels[order[0]] if sure else UNKNOWN, "top": best})
        if none_of_these is not None:
            rows[-1]["none_of_these"] = bool(none_of_these[i])
    if json_:
        print(json.dumps(rows))
    elif csv:
        _print_csv(rows, min(top, len(labels)))
    else:
        for line, row in zip(rows, probabilities, strict=True):
            likeliest = ", ".join(f"{printable_name(answer['label'])} {answer['probability']:.3f}" for answer in line["top"])
            hint = f"; called {NONE}" if line.get("none_of_these") else ""
            answer = printable_name(line["label"]) if row.max() >= unknown_below else NONE
            say(f"{printable_name(line['file'])}: {answer}  ({likeliest}{hint})")


def _print_csv(rows: Sequence[dict[str, Any]], top: int) -> None:
    writer = comma_separated.writer(sys.stdout, lineterminator="\n")
    more = ["none_of_these"] if "none_of_these" in rows[0] else []
    writer.writerow(["file", "label", *(f"{name}{k}" for k in range(1, top + 1) for name in ("top", "probability")), *more])
    for row in rows:
        answers = [cell for answer in row["top"] for cell in (csv_cell(answer["label"]), answer["probability"])]
        writer.writerow([csv_cell(row["file"]), csv_cell(row["label"]), *answers, *(str(row[name]).lower() for name in more)])
