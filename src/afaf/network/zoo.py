"""The architectures that come with the package. A new one is a function from (norm, dropout_at) to its hidden layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from afaf.errors import ConfigError, unknown
from afaf.network.spec import Layer, NetworkSpec, OperationName

Norm = Literal["none", "batch"]
DropoutAt = Literal["code", "paper"]


def alexnet(norm: Norm, dropout_at: DropoutAt) -> tuple[Layer, ...]:
    """The paper's network. Dropout sits where the authors' code has it (three places) or where the paper's table has it (two);
    with batch norm, after each of the two pools, there is no dropout."""
    if norm == "batch":
        return (
            Layer("conv", 64),
            Layer("conv", 128, ("relu", "pool", "norm")),
            Layer("conv", 256, ("relu", "pool", "norm")),
            Layer("dense", 2048),
            Layer("dense", 2048),
        )
    if dropout_at == "paper":
        return (
            Layer("conv", 64),
            Layer("conv", 128, ("relu", "pool", "dropout")),
            Layer("conv", 256, ("relu", "pool")),
            Layer("dense", 2048, ("relu", "dropout")),
            Layer("dense", 2048),
        )
    return (
        Layer("conv", 64),
        Layer("conv", 128, ("relu", "pool")),
        Layer("conv", 256, ("relu", "dropout", "pool")),
        Layer("dense", 2048, ("relu", "dropout")),
        Layer("dense", 2048, ("relu", "dropout")),
    )


def small_cnn(norm: Norm, dropout_at: DropoutAt) -> tuple[Layer, ...]:
    """Two convolutions and two dense layers: for 8x8 digits on a laptop, and for pictures of what the method does."""
    after_pool: tuple[OperationName, ...] = ("relu", "pool", "norm") if norm == "batch" else ("relu", "pool")
    dense: tuple[OperationName, ...] = ("relu",) if norm == "batch" else ("relu", "dropout")
    return (Layer("conv", 32), Layer("conv", 64, after_pool), Layer("dense", 256, dense), Layer("dense", 256, dense))


def mlp(norm: Norm, dropout_at: DropoutAt) -> tuple[Layer, ...]:
    """Two dense layers, for vectors and small images."""
    then: tuple[OperationName, ...] = ("relu", "norm") if norm == "batch" else ("relu", "dropout")
    return (Layer("dense", 400, then), Layer("dense", 400, then))


def tiny_mlp(norm: Norm, dropout_at: DropoutAt) -> tuple[Layer, ...]:
    """Three layers of twelve neurons: small enough to draw every connection."""
    return (Layer("dense", 12), Layer("dense", 12), Layer("dense", 12))


NETWORKS: dict[str, Callable[[Norm, DropoutAt], tuple[Layer, ...]]] = {
    "alexnet": alexnet,
    "small-cnn": small_cnn,
    "mlp": mlp,
    "tiny-mlp": tiny_mlp,
}


def describe(
    name: str,
    input_shape: tuple[int, ...],
    n_classes: int,
    *,
    norm: Norm = "none",
    dropout: float = 0.2,
    dropout_at: DropoutAt = "code",
) -> NetworkSpec:
    """The named network for this input and this many classes."""
    if name not in NETWORKS:
        raise ConfigError(unknown("network", name, NETWORKS))
    spec = NetworkSpec(name, input_shape, NETWORKS[name](norm, dropout_at), n_classes, dropout)
    _ = spec.layers  # an input that does not fit is refused here, before anything is built
    return spec
