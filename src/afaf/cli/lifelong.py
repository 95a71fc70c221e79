"""The commands for a model of one's own images: `afaf learn | predict | evaluate | inspect | classes | forget | merge | export | serve`.

What they do is in other files of this folder, imported when they are called: `afaf --help` need not wait for PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from afaf.cli.consoles import new_console
from afaf.cluster import is_cluster
from afaf.errors import ConfigError

PANEL = "A model of your own images"
console = new_console()
stderr = new_console(stderr=True)

SetOption = Annotated[list[str], typer.Option("--set", help="New model: any other setting, section.key=value; may be repeated.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
ModelOption = Annotated[Path, typer.Option("--model", help="The model file, for example model.safetensors.")]
ModelFile = Annotated[Path, typer.Argument(help="A model file, made by afaf learn or AFAFClassifier.save; or by afaf run.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that is there, also one that this command has not written.")]
EncoderOption = Annotated[str | None, typer.Option("--encoder", help="The model's encoder, if its file is not where it was.")]
CacheOption = Annotated[Path | None, typer.Option("--cache", help="Keep the encoder's features of images in this folder.")]
SkipOption = Annotated[bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read, instead of stopping.")]


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
        str,
        typer.Option(
            help="New model: a frozen encoder below a closed-form head: efficientnet-lite0, timm:NAME, torchvision:NAME, "
            "transformers:NAME, FILE.pt2, FILE.onnx or patches, which needs no training; none trains a network; auto does so if an option "
            "for a network is given, else it takes efficientnet-lite0 if afaf\\[photos] is installed, else patches."
        ),
    ] = "auto",
    method: Annotated[
        str | None,
        typer.Option(help="New model: lda, ridge, projection or nearest-mean with an encoder; without, one that `afaf methods` lists."),
    ] = None,
    evaluate: Annotated[Path | None, typer.Option(help="Test images: tell how many are right before and after.")] = None,
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
    from afaf.cli.photos import encoder_for

    given: dict[str, Any] = {"max_tasks": max_tasks, "max_classes": max_classes, "size": size, "grey": grey, "network": network}
    given |= {"epochs": epochs, "augment": "crop-flip" if augment else None, "validation": validation, "seed": seed}
    given["settings"] = set_ or None
    name = encoder_for(model, encoder, method, given, stderr)
    if name is None and cache is not None:
        raise ConfigError("--cache keeps features of an encoder, and a network is trained here: leave it out")
    if is_cluster(on) and (name is None or cache is not None):
        raise ConfigError(f"--on {on} is for a model with an encoder, without --cache: leave it out")
    learn_folder(
        folder,
        model,
        {**given, "method": method},
        encoder=name,
        cache=cache,
        evaluate_on=evaluate,
        device=device,
        unreadable="skip" if skip_unreadable else "error",
        out=console,
        stderr=stderr,
        as_json=json_,
        on=on,
    )


def predict(
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    model: ModelOption,
    top: Annotated[int, typer.Option(help="How many of the likeliest classes to show.", min=1)] = 3,
    unknown_below: Annotated[float, typer.Option(help="Answer `unknown` where no class is at least so probable.", min=0.0, max=1.0)] = 0.0,
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    encoder: EncoderOption = None,
    cache: CacheOption = None,
    device: DeviceOption = "auto",
    skip_unreadable: SkipOption = False,
) -> None:
    """Say which of the learned classes images are of, with probabilities."""
    from afaf.cli.predict import predict_images

    if json_ and csv:
        raise ConfigError("--json and --csv exclude each other")
    unreadable: Any = "skip" if skip_unreadable else "error"
    form = "json" if json_ else "csv" if csv else "lines"
    how: Any = {"top": top, "unknown_below": unknown_below, "form": form, "encoder": encoder, "cache": cache}
    predict_images(model, images, **how, device=device, unreadable=unreadable, out=console, stderr=stderr)


def inspect(
    file: ModelFile,
    html: Annotated[bool, typer.Option("--html", help="Write a page beside the model, FILE.html, that also shows who owns what.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Write a picture of who owns what to this .png, .svg or .pdf file.")] = None,
    force: ForceOption = False,
    json_: JsonOption = False,
) -> None:
    """Show what a model holds: classes by task and date, capacity of each layer, sizes, and who owns what."""
    from afaf.cli.inspect import inspect_model
    from afaf.cli.photos import inspect_photos
    from afaf.lifelong.model_store import has_encoder

    page = file.with_suffix(".html") if html else None
    if has_encoder(file):
        if picture is not None:
            raise ConfigError(f"{file} has an encoder and a head, no network to draw: leave out --picture")
        inspect_photos(file, html=page, as_json=json_, force=force, out=console)
        return
    inspect_model(file, html=page, picture=picture, as_json=json_, force=force, out=console)


def classes(
    file: ModelFile,
    rename: Annotated[list[str], typer.Option(help="OLD=NEW: another name for a class; may be repeated.")] = [],
    remove: Annotated[list[str], typer.Option(help="A class to forget; may be repeated.")] = [],
) -> None:
    """List, rename or remove the classes of a model. Removing all classes of a task makes room for another."""
    from afaf.cli.learn import change_classes

    change_classes(file, rename, remove, console)


def export(
    file: ModelFile,
    onnx: Annotated[Path | None, typer.Option(help="Write an ONNX model to this file (needs afaf\\[onnx]).")] = None,
    torch: Annotated[Path | None, typer.Option(help="Write a torch.export program (.pt2) to this file.")] = None,
    images: Annotated[list[Path], typer.Option(help="Verify on these real images or folders too, besides random ones.")] = [],
    dense: Annotated[bool, typer.Option("--dense", help="Keep all neurons, also those that reach no output: for comparison.")] = False,
    encoder: EncoderOption = None,
    force: ForceOption = False,
) -> None:
    """Write the network for production: unused neurons removed, normalisation and calibration included, verified against the model.

    It takes pixels as they are in image files: bytes, (images, height, width, channels). A model with an encoder is written with it.

    It answers with logits and probabilities; the labels are in the file's metadata.
    """
    from afaf.cli.export import export_model

    export_model(file, onnx=onnx, torch=torch, images=images, dense=dense, encoder=encoder, force=force, out=console)


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
    from afaf.cli.evaluate import evaluate_model

    unreadable: Any = "skip" if skip_unreadable else "error"
    page = file.with_suffix(".evaluation.html") if html else None
    shown: Any = {"as_json": json_, "force": force, "out": console, "stderr": stderr}
    evaluate_model(file, folder, html=page, encoder=encoder, cache=cache, device=device, unreadable=unreadable, **shown)


def forget(
    folder: Annotated[Path, typer.Argument(help="A folder of class folders, with the images that the model is to forget.")],
    model: ModelOption,
    encoder: EncoderOption = None,
    cache: CacheOption = None,
    device: DeviceOption = "auto",
    skip_unreadable: SkipOption = False,
) -> None:
    """Take images out of a model with an encoder: it is then the same as one that has never learned them."""
    from afaf.cli.photos import forget_photos

    unreadable: Any = "skip" if skip_unreadable else "error"
    forget_photos(folder, model, encoder=encoder, cache=cache, device=device, unreadable=unreadable, out=console, stderr=stderr)


def merge(
    models: Annotated[list[Path], typer.Argument(help="Model files with the same encoder and head.")],
    out: Annotated[Path, typer.Option("--model", help="The merged model: a new file.")],
) -> None:
    """Merge models with an encoder that were taught apart: the result equals one model taught all their images."""
    from afaf.cli.photos import merge_models

    merge_models(models, out, console)


def serve(
    file: Annotated[Path, typer.Argument(help="The model file; it need not be there yet: it begins with the first class taught.")],
    host: Annotated[str, typer.Option(help="The address to listen at; another than the local one needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000,
    token: Annotated[str | None, typer.Option(envvar="AFAF_TOKEN", help="A secret that every request must give.")] = None,
    allow_host: Annotated[list[str], typer.Option(help="Another name by which the server is reached; may be repeated.")] = [],
    read_only: Annotated[bool, typer.Option("--read-only", help="Answer, but neither teach nor change.")] = False,
    rate: Annotated[float, typer.Option(help="Requests of one client in a second; 0: any number.", min=0.0)] = 50.0,
    encoder: Annotated[str, typer.Option(help="New model: as for afaf learn; auto, none or a name.")] = "auto",
    device: DeviceOption = "auto",
) -> None:
    """Serve a page and an HTTP API where a model is taught and asked. Needs afaf\\[serve]."""
    from afaf.cli.serve import serve_model

    serve_model(
        file,
        host=host,
        port=port,
        token=token,
        hosts=allow_host,
        encoder=encoder,
        device=device,
        read_only=read_only,
        limits={"rate": rate, "burst": 4 * rate},
        out=console,
        stderr=stderr,
    )


def add_lifelong(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (learn, predict, evaluate, inspect, classes, forget, merge, export, serve):
        app.command(rich_help_panel=PANEL)(command)
