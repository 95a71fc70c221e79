"""The commands for a model of one's own images: `afaf learn | predict | evaluate | inspect | classes | forget | merge | export | serve`.

Commands import what they need when they are called, so that `afaf --help` does not wait for PyTorch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from afaf.cli.evaluate import evaluate
from afaf.cli.export import export
from afaf.cli.inspect import inspect
from afaf.cli.options import CacheOption, DeviceOption, EncoderOption, JsonOption, ModelFile, ModelOption, SkipOption
from afaf.cli.predict import predict
from afaf.cli.serve import serve
from afaf.cluster import is_cluster
from afaf.errors import ConfigError

PANEL = "A model of your own images"
SetOption = Annotated[list[str], typer.Option("--set", help="New model: any other setting, section.key=value; may be repeated.")]


def learn(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="A folder that has a folder of images for each new class; with an encoder also one behind a URL (s3://...), "
            "or a manifest: a CSV file of path and label.",
        ),
    ],
    model: ModelOption,
    max_tasks: Annotated[int | None, typer.Option(help="New model: how many calls of learn it is made for (default 10).", min=1)] = None,
    max_classes: Annotated[int | None, typer.Option(help="New model: most classes in all (default: as many as come).", min=1)] = None,
    size: Annotated[int | None, typer.Option(help="New model: images are scaled to SIZE x SIZE (default 32).", min=1, max=4096)] = None,
    grey: Annotated[bool, typer.Option("--grey", help="New model: see images in grey.")] = False,
    network: Annotated[str | None, typer.Option(help="New model: alexnet, small-cnn or mlp (default: by the size of the images).")] = None,
    epochs: Annotated[int | None, typer.Option(help="New model: epochs of a task (default: by its images, 20 to 200).", min=1)] = None,
    augment: Annotated[bool, typer.Option("--augment", help="New model: crop and flip images at random; for photographs.")] = False,
    validation: Annotated[float | None, typer.Option(help="New model: share of each class held out to judge it by (default 0.1).")] = None,
    seed: Annotated[int | None, typer.Option(help="New model: its seed (default 0).", min=0)] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="New model: a frozen encoder below a closed-form head: efficientnet-lite0, timm:NAME, torchvision:NAME, "
            "transformers:NAME, FILE.pt2, FILE.onnx or patches, which needs no training; none trains a network; auto does so if an option "
            "for a network is given, else it takes efficientnet-lite0 if afaf\\[photos] is installed, else patches (default: auto)."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="New model: with an encoder lda, ridge, projection or nearest-mean; or, with or without, a method that `afaf methods` "
            "lists, by which a network is trained."
        ),
    ] = None,
    class_sums: Annotated[
        bool,
        typer.Option(
            "--class-sums",
            help="New model with a head in closed form: keep sums of each class too (13 MB a class with 1280 features), so that "
            "`afaf classes --remove` takes a class out exactly, without its images.",
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="New model: a TOML file with \\[encoder] (name, head, options, balance, class_sums), or settings of a network."),
    ] = None,
    evaluate_on: Annotated[Path | None, typer.Option("--evaluate", help="Test images: tell how many are right before and after.")] = None,
    cache: CacheOption = None,
    on: Annotated[
        str,
        typer.Option("--on", help="Where images are encoded: local; ray, processes on this machine; or ray:HOST:PORT, a cluster."),
    ] = "local",
    device: DeviceOption = "auto",
    skip_unreadable: SkipOption = False,
    set_: SetOption = [],
    json_: JsonOption = False,
) -> None:
    """Teach a model classes from a folder of class folders: the first call makes the model, each further one adds to it.

    With an encoder, further images of a class that the model knows are welcome; without, a call brings new classes.

    The images are not needed afterwards. Options marked "New model" are for the first call only.

    The model file is written whole or not at all: Ctrl-C leaves it as it was.
    """
    from afaf.cli.learn import learn_folder
    from afaf.cli.photos import encoder_for, read_encoding
    from afaf.runs.folder import flat

    given: dict[str, Any] = {"max_tasks": max_tasks, "max_classes": max_classes, "size": size, "grey": grey, "network": network}
    given |= {"epochs": epochs, "augment": "crop-flip" if augment else None, "validation": validation, "seed": seed}
    how, settings = read_encoding(config, encoder, method, class_sums)
    given["settings"] = [*(f"{key}={json.dumps(value)}" for key, value in flat(settings).items()), *set_] or None
    name, trains = encoder_for(model, how, given)
    if name is None and cache is not None and not model.exists():
        raise ConfigError("--cache keeps features of an encoder, and a network learns from images here: leave it out")
    if trains and how.class_sums:
        raise ConfigError("--class-sums are for a head in closed form, and a network is trained here: leave it out")
    if is_cluster(on) and (trains or cache is not None):
        raise ConfigError(f"--on {on} is for a model of an encoder and a head, without --cache: leave it out")
    learn_folder(
        folder,
        model,
        {**given, "method": how.head},
        encoder=name,
        trains=trains,
        how=how,
        cache=cache,
        evaluate_on=evaluate_on,
        device=device,
        skip_unreadable=skip_unreadable,
        as_json=json_,
        on=on,
    )


def classes(
    file: ModelFile,
    rename: Annotated[list[str], typer.Option(help="OLD=NEW: another name for a class; may be repeated.")] = [],
    remove: Annotated[list[str], typer.Option(help="A class to forget; may be repeated.")] = [],
) -> None:
    """List, rename or remove the classes of a model. Removing all classes of a task makes room for another."""
    from afaf.cli.learn import change_classes

    change_classes(file, rename, remove)


def forget(
    folder: Annotated[Path, typer.Argument(help="A folder of class folders, with the images that the model is to forget.")],
    model: ModelOption,
    encoder: EncoderOption = None,
    cache: CacheOption = None,
    device: DeviceOption = "auto",
    skip_unreadable: SkipOption = False,
) -> None:
    """Take images out of a model with an encoder: it is then the same as one that has never learned them.

    Name only images that it has learned, each once for each time it was learned. afaf keeps no images: it refuses if the
    remaining model could not come from any images, but it cannot detect a few that were never learned, and these spoil the model.
    """
    from afaf.cli.photos import forget_photos

    forget_photos(folder, model, encoder, cache, device, skip_unreadable)


def merge(
    models: Annotated[list[Path], typer.Argument(help="Model files with the same encoder and head.")],
    out: Annotated[Path, typer.Option("--model", help="The merged model: a new file.")],
) -> None:
    """Merge models with an encoder that were taught apart: the result equals one model taught all their images."""
    from afaf.cli.photos import merge_models

    merge_models(models, out)


def add_lifelong(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (learn, predict, evaluate, inspect, classes, forget, merge, export, serve):
        app.command(rich_help_panel=PANEL)(command)
