"""`afaf evaluate`: how right a model is on a folder of labelled images."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from afaf.cli.consoles import print_table, say
from afaf.cli.options import CacheOption, DeviceOption, EncoderOption, ForceOption, JsonOption, ModelFile, SkipOption


def evaluate(
    file: ModelFile,
    folder: Annotated[Path, typer.Argument(help="A folder that has a folder of images for each class; test in it is not looked for.")],
    html: Annotated[bool, typer.Option("--html", help="Write a page beside the model, FILE.evaluation.html.")] = False,
    encoder: EncoderOption = None,
    cache: CacheOption = None,
    device: DeviceOption = "auto",
    skip_unreadable: SkipOption = False,
    force: ForceOption = False,
    json_: JsonOption = False,
) -> None:
    """Say how many images of a folder a model gets right: overall, by class and by call, with its surest mistakes and its calibration."""
    from afaf.cli.answers import evaluated, open_ready
    from afaf.files import check_output, write_output
    from afaf.report.model_page import CLASS_HEADINGS, class_rows, evaluation_page
    from afaf.streams.own import find_class_folders

    page = file.with_suffix(".evaluation.html")
    if html:
        check_output(page, "html", [file], force=force)
    files = find_class_folders(folder).files
    evaluation = evaluated(file, open_ready(file, device, encoder, cache), files, skip_unreadable)
    if html:
        write_output(page, "html", evaluation_page(file, folder, evaluation).html().encode(), [file], force=force)
    if json_:
        print(json.dumps(asdict(evaluation)))
        return
    say(f"{evaluation.accuracy:.1f} % of {evaluation.images} images are right; calibration error {evaluation.calibration_error:.3f}")
    if evaluation.unknown is not None:
        say(f"{evaluation.unknown:.1f} % are called none of these")
    if evaluation.unknown_classes.images:
        say(f"not counted: {evaluation.unknown_classes}")
    print_table(CLASS_HEADINGS, class_rows(evaluation))
    for call in evaluation.calls:
        say(f"classes of call {call['call']}: {call['accuracy']:.1f} % of {call['images']} images")
    if evaluation.never_right:
        say(f"never right: {', '.join(evaluation.never_right)}")
    for image in evaluation.worst[:3]:
        say(f"{image['file']}: {image['label']}, answered {image['answer']} with probability {image['probability']:.2f}")
    if html:
        say(f"wrote {page}")
