"""CUDA kernels in Triton, used where several small kernels would reread the same numbers; every sum has a fixed order."""

from afaf.training.cuda.kernels.activation import Draw, Move, activate, add_up, deactivate, move_bias
from afaf.training.cuda.kernels.cross_entropy import LossBuffers, fused_cross_entropy, tile_of_logits
from afaf.training.cuda.kernels.images import can_crop, can_fuse_first_conv, crops, fetch, first_conv, first_conv_backward
from afaf.training.cuda.kernels.language import available
from afaf.training.cuda.kernels.norm import can_normalise, normalise, normalise_backward
from afaf.training.cuda.kernels.penalty import WeightPenalty, penalised_step, penalty_grad_norm
from afaf.training.cuda.kernels.weights import learn, update, update_listed

__all__ = [
    "Draw",
    "LossBuffers",
    "Move",
    "WeightPenalty",
    "activate",
    "add_up",
    "available",
    "can_crop",
    "can_fuse_first_conv",
    "can_normalise",
    "crops",
    "deactivate",
    "fetch",
    "first_conv",
    "first_conv_backward",
    "fused_cross_entropy",
    "learn",
    "move_bias",
    "normalise",
    "normalise_backward",
    "penalised_step",
    "penalty_grad_norm",
    "tile_of_logits",
    "update",
    "update_listed",
]
