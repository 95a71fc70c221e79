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


def chosen_encoder(encoder: Source | None, method: str | None, options: Sequence[str] = ()) -> Source | None:
    """The encoder of a new model; None: a network is trained. `options` names given options that only a network has.

    "none" and None train a network. "auto" does so if an option or a method of a network is given, else it takes the best encoder
    installed. Any other encoder excludes such options.
    """
    trains = (isinstance(encoder, str) and encoder in (AUTO, NONE)) or encoder is None
    if method is not None and method not in (*HEADS, *method_names()):
        raise ConfigError(f"unknown method '{method}': with an encoder {', '.join(HEADS)}; for a network {', '.join(method_names())}")
    of_network = [*options, *([f"method {method}"] if method is not None and method not in HEADS else [])]
    if encoder == AUTO and not of_network:
        return automatic()
    if trains:
        if method in HEADS and method not in method_names():
            why = f"{', '.join(of_network)}: for a network" if of_network else "it is a head"
            raise ConfigError(f"method {method} needs an encoder ({why}): name one, or another method")
        return None
    if of_network:
        raise ConfigError(f"{', '.join(of_network)}: for a network that is trained, not for an encoder: leave that out, or the encoder")
    return encoder
