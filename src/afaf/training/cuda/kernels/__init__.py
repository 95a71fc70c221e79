"""Kernels for CUDA, in Triton: where a chain of small ones would read the same numbers again and again. Every sum has a fixed order."""

from afaf.training.cuda.kernels.activation import Draw, Move, activate, add_up, deactivate, move_bias
from afaf.training.cuda.kernels.cross_entropy import Court, judge, tile_of_logits
from afaf.training.cuda.kernels.images import can_crop, can_look, crops, fetch, look, look_back
from afaf.training.cuda.kernels.language import available
from afaf.training.cuda.kernels.penalty import Held, move_held, tension
from afaf.training.cuda.kernels.weights import learn, update, update_listed

__all__ = [
    "Court",
    "Draw",
    "Held",
    "Move",
    "activate",
    "add_up",
    "available",
    "can_crop",
    "can_look",
    "crops",
    "deactivate",
    "fetch",
    "judge",
    "learn",
    "look",
    "look_back",
    "move_bias",
    "move_held",
    "tension",
    "tile_of_logits",
    "update",
    "update_listed",
]
