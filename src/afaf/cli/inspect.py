"""`afaf inspect`: the contents of a model file."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from afaf.cli.consoles import print_table, say
from afaf.cli.options import ForceOption, JsonOption, ModelFile
from afaf.errors import ConfigError
from afaf.text import printable_name

PICTURES = (".png", ".svg", ".pdf")


def inspect(
    file: ModelFile,
    html: Annotated[bool, typer.Option("--html", help="Write a page beside the model, FILE.html, that also shows who owns what.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Write a picture of who owns what to this .png, .svg or .pdf file.")] = None,
    force: ForceOption = False,
    json_: JsonOption = False,
) -> None:
    """Show what a model holds: classes by task and date, capacity of each layer, sizes, and who owns what."""
    from afaf.files import check_output, write_output
    from afaf.files.marks import format_of
    from afaf.lifelong.encoded import EncodedModel
    from afaf.lifelong.model_store import has_encoder, load_any
    from afaf.report.figures import ledger_figure, save
    from afaf.report.model_page import confusions, encoded_facts, encoded_page, model_facts, model_page

    if picture is not None and has_encoder(file):
        raise ConfigError(f"{file} has an encoder and a head, no network to draw: leave out --picture")
    if picture is not None and picture.suffix.lower() not in PICTURES:
        raise ConfigError(f"--picture {picture}: name a file that ends in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
    model, page = load_any(file), file.with_suffix(".html")
    if html:
        check_output(page, "html", [file], force=force)
    if picture is not None:
        check_output(picture, format_of(picture), [file], force=force)
    facts = encoded_facts(file, model) if isinstance(model, EncodedModel) else model_facts(file, model)
    if html:
        drawn = encoded_page(file, model) if isinstance(model, EncodedModel) else model_page(file, model)
        write_output(page, "html", drawn.html().encode(), [file], force=force)
        say(f"wrote {page}")
    if picture is not None and not isinstance(model, EncodedModel):
        write_output(picture, format_of(picture), partial(save, ledger_figure(model.model)), [file], force=force)
        say(f"wrote {picture}")
    if json_:
        print(json.dumps(facts))
    elif not html and picture is None:
        if isinstance(model, EncodedModel):
            show_encoded(file, facts, confusions(model)[:3])
        else:
            show_network(file, facts, model.learns)


def show_network(file: Path, facts: dict[str, Any], learns: bool) -> None:
    from afaf.report.model_page import LAYER_HEADINGS, TASK_HEADINGS, encoder_below, layer_rows, task_rows

    shape = "x".join(map(str, facts["input_shape"]))
    say(f"{file}: {facts['bytes'] / 1e6:.1f} MB, {facts['network']} for inputs of {shape}{encoder_below(facts)}, seed {facts['seed']}")
    say(f"{facts['weights']:,} of {facts['dense_weights']:,} weights owned; temperature {facts['temperature']:.2f}")
    print_table(TASK_HEADINGS, task_rows(facts))
    print_table(LAYER_HEADINGS, layer_rows(facts))
    owned = ", ".join(f"{edge['connections']} {100 * edge['owned'] / edge['total']:.1f} %" for edge in facts["connections"])
    say(f"connections owned: {owned}")
    say(f"{facts['tasks_that_fit']} more tasks of the last one's size fit" if learns else "written by afaf run: it learns no more")


def show_encoded(file: Path, facts: dict[str, Any], confused: list[tuple[str, str, float]]) -> None:
    encoder = facts["encoder"]
    say(f"{file}: {facts['bytes'] / 1e6:.1f} MB, encoder {encoder['name']} ({encoder['digest'][:12]}), head {facts['head']['name']}")
    for row in facts["classes"]:
        say(f"{printable_name(row['label'])}: {row['images']} images, first in call {row['call']}")
    for row in facts["calls"]:
        held = "" if row["accuracy"] is None else f", {row['accuracy']:.1f} % of {row['held_out']} held-out ones right"
        say(f"call {row['call']}, {row['learned']} UTC: {row['images'] + row['held_out']} images{held}")
    gone = sum(row["images"] + row["held_out"] for row in facts["calls"]) - sum(row["images"] for row in facts["classes"])
    if gone > 0:
        say(f"{gone} images of these calls were forgotten since, or are of classes that were removed")
    for label, answer, share in confused:
        say(f"about {100 * share:.0f} % of images of {printable_name(label)} are taken for {printable_name(answer)}")
