"""Which encoder a new model gets, on the command line and in Python alike."""

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


OF_IMAGES = ("size", "grey", "augment")  # options of a network that learns from images


def chosen_encoder(encoder: Source | None, method: str | None, options: Sequence[str] = ()) -> Source | None:
    """The encoder of a new model; None: a network learns from images. `options` names given options that only a network has.

    "none" and None mean none. "auto" does so too if an option or a method of a network is given, else it takes the best encoder installed.
    """
    if method is not None and method not in (*HEADS, *method_names()):
        raise ConfigError(f"unknown method '{method}': closed form {', '.join(HEADS)}; of a network {', '.join(method_names())}")
    if encoder == AUTO and not trains_network(method, options):
        return automatic()
    if encoder is None or (isinstance(encoder, str) and encoder in (AUTO, NONE)):
        if method in HEADS and method not in method_names():
            why = f"{', '.join(options)}: for a network" if options else "it is a head"
            raise ConfigError(f"method {method} needs an encoder ({why}): name one, or another method")
        return None
    needless = options if method in HEADS and method not in method_names() else [o for o in options if o.lstrip("-") in OF_IMAGES]
    if needless:
        raise ConfigError(
            f"{', '.join(needless)}: not for {f'the head {method}' if method in HEADS else 'features of an encoder'}: leave that out"
        )
    return encoder


def trains_network(method: str | None, options: Sequence[str]) -> bool:
    """Whether a network is trained, from images or on features, and not a head solved: a method or an option of a network asks for it."""
    return bool(options) or (method is not None and method not in HEADS)
