"""The choice of a new model's encoder, the same on the command line and in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from afaf.encoders.find import automatic
from afaf.errors import ConfigError
from afaf.heads import HEADS
from afaf.methods import method_names

AUTO, NONE = "auto", "none"
Source = str | Path | nn.Module  # an encoder by name, file or module


NETWORK = "network"  # the option that asks for a network, whatever the method
OF_IMAGES = ("size", "grey", "augment")  # options of a network that learns from images


def chosen_encoder(encoder: Source | None, method: str | None, options: Sequence[str] = ()) -> Source | None:
    """The encoder of a new model; None: a network learns from images. `options` are given options that only a network has.

    "none" and None mean no encoder; so does "auto" if an option or a method of a network is given, else it is the best encoder installed.
    With a named encoder, an option alone does not replace the head by a network, which is far worse: the option is refused.
    """
    if method is not None and method not in (*HEADS, *method_names()):
        raise ConfigError(f"unknown method '{method}': closed form {', '.join(HEADS)}; of a network {', '.join(method_names())}")
    if encoder == AUTO:
        encoder = NONE if options or _of_network(method) else automatic()
    if encoder is None or encoder == NONE:
        if method in HEADS and method not in method_names():
            why = f"{', '.join(options)}: for a network" if options else "it is a head"
            raise ConfigError(f"method {method} needs an encoder ({why}): name one, or another method")
        return None
    if of_images := [option for option in options if option.lstrip("-") in OF_IMAGES]:
        raise ConfigError(f"{', '.join(of_images)}: for a network that learns from images, and an encoder is named: leave that out")
    if options and not trains_network(method, options):
        raise ConfigError(
            f"{', '.join(options)}: for a network, and a head in closed form is on the encoder: leave that out, or add --method afaf "
            '(in Python method="afaf") to train a network on the encoder\'s features'
        )
    return encoder


def trains_network(method: str | None, options: Sequence[str]) -> bool:
    """Whether a network is trained on an encoder's features instead of solving a head: a method or `network` asks for it."""
    asked = NETWORK in [option.lstrip("-") for option in options]
    return _of_network(method) or (asked and (method is None or method in method_names()))


def _of_network(method: str | None) -> bool:
    return method is not None and method not in HEADS
