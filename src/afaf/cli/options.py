"""The options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

SEEDS: Any = {"min": 1, "max": 10_000}
STREAM = typer.Argument(help="A stream: `afaf streams` lists them; folder:PATH or npz:PATH for your own data.")

StreamName = Annotated[str, STREAM]
MethodName = Annotated[str, typer.Argument(help="A method: `afaf methods` lists them.")]
SetOption = Annotated[list[str], typer.Option("--set", help="A setting, section.key=value, for example learn.epochs=10; may be repeated.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings, or the config.json of a run.")]
DataOption = Annotated[Path | None, typer.Option("--data", help="The data folder (default: $AFAF_DATA, or the cache folder).")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file, also one that this command has not written.")]
AtOnceOption = Annotated[int | None, typer.Option("--jobs-at-once", help="Runs side by side (default: 4 on a GPU, 1 on a CPU).", min=1)]
OnOption = Annotated[
    str, typer.Option("--on", help="local; ray, a cluster of processes on this machine; or ray:HOST:PORT, an existing Ray cluster.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
SeedOption = Annotated[int, typer.Option(help="The seed.", min=0)]
PrecisionOption = Annotated[str | None, typer.Option(help="Of matrix products: fp32, tf32 (the default, on a GPU) or bf16.")]

ModelOption = Annotated[Path, typer.Option("--model", help="The model file, for example model.safetensors.")]
ModelFile = Annotated[Path, typer.Argument(help="A model file, made by afaf learn or AFAFClassifier.save; or by afaf run.")]
EncoderOption = Annotated[str | None, typer.Option("--encoder", help="The model's encoder, if its file is not where it was.")]
CacheOption = Annotated[Path | None, typer.Option("--cache", help="Keep the encoder's features of images in this folder.")]
SkipOption = Annotated[bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read, instead of stopping.")]
