"""The built-in architectures: each is a function of width, norm or dropout_at that returns its hidden layers.

The defaults are the network's own. `width` is the number of maps or neurons of the first layer; the other layers follow from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

import torch
from torch import nn

from afaf.errors import ConfigError, unknown
from afaf.network.forward import Parameters
from afaf.network.spec import Layer, NetworkSpec
from afaf.network.tracing import trace, traced_values

Norm = Literal["none", "batch", "each"]  # each: in every hidden layer, before its ReLU
DropoutAt = Literal["code", "paper"]
Given = nn.Module | tuple[Layer, ...]  # a network given as an object
Architecture = Callable[..., Given]


def alexnet(norm: Norm = "none", dropout_at: DropoutAt = "code", width: int = 64) -> tuple[Layer, ...]:
    """The paper's network. Dropout sits where the authors' code has it (three places) or where the paper's table has it (two);
    with batch norm, after each of the two pools, there is no dropout."""
    ops: list[tuple[str, ...]]
    first: tuple[str, ...] = ("relu",)
    if norm == "batch":
        ops = [("relu", "pool", "norm"), ("relu", "pool", "norm"), ("relu",), ("relu",)]
    elif norm == "each":
        first = ("norm", "relu")
        ops = [(*first, "pool"), (*first, "dropout", "pool"), (*first, "dropout"), (*first, "dropout")]
    elif dropout_at == "paper":
        ops = [("relu", "pool", "dropout"), ("relu", "pool"), ("relu", "dropout"), ("relu",)]
    else:
        ops = [("relu", "pool"), ("relu", "dropout", "pool"), ("relu", "dropout"), ("relu", "dropout")]
    maps = (Layer("conv", 64, first), Layer("conv", 128, ops[0]), Layer("conv", 256, ops[1]))
    return _scaled((*maps, Layer("dense", 2048, ops[2]), Layer("dense", 2048, ops[3])), width, 64)


def small_cnn(norm: Norm = "none", width: int = 32) -> tuple[Layer, ...]:
    """Two convolutions and two dense layers: for 8x8 digits on a laptop, and for pictures of what the method does."""
    before = ("norm", "relu") if norm == "each" else ("relu",)
    after_pool = (*before, "pool", "norm") if norm == "batch" else (*before, "pool")
    dense = ("relu",) if norm == "batch" else (*before, "dropout")
    layers = (Layer("conv", 32, before), Layer("conv", 64, after_pool), Layer("dense", 256, dense), Layer("dense", 256, dense))
    return _scaled(layers, width, 32)


def mlp(norm: Norm = "none", width: int = 400) -> tuple[Layer, ...]:
    """Two dense layers, for vectors and small images."""
    ops = {"none": ("relu", "dropout"), "batch": ("relu", "norm"), "each": ("norm", "relu", "dropout")}[norm]
    return (Layer("dense", width, ops), Layer("dense", width, ops))


def tiny_mlp(width: int = 12) -> tuple[Layer, ...]:
    """Three layers of twelve neurons: small enough to draw every connection."""
    return (Layer("dense", width), Layer("dense", width), Layer("dense", width))


def resnet18(norm: Norm = "batch", width: int = 64) -> tuple[Layer, ...]:
    """He et al., 2016, with the stem for small images: a 3x3 convolution, no pooling."""
    return _residual((2, 2, 2, 2), norm, width)


def resnet10(norm: Norm = "batch", width: int = 64) -> tuple[Layer, ...]:
    """One block per stage, with the stem for small images."""
    return _residual((1, 1, 1, 1), norm, width)


def resnet18_imagenet(norm: Norm = "batch", width: int = 64) -> tuple[Layer, ...]:
    """With the stem for photographs: a 7x7 convolution of stride 2 and a pool, which leave a sixteenth of the positions."""
    return _residual((2, 2, 2, 2), norm, width, photographs=True)


def vgg11(norm: Norm = "batch", width: int = 64) -> tuple[Layer, ...]:
    """Simonyan and Zisserman, 2015, without its dense layers: eight 3x3 convolutions, five pools, a mean over the remaining positions."""
    ops = ("relu",) if norm == "none" else ("norm", "relu")
    plan = ((1, True), (2, True), (4, False), (4, True), (8, False), (8, True), (8, False), (8, True))
    layers = [Layer("conv", factor * width, (*ops, "pool") if pool else ops, padding=1) for factor, pool in plan]
    return (*layers[:-1], replace(layers[-1], ops=(*ops, "pool", "global-mean")))


def mobilenet_like(norm: Norm = "batch", width: int = 32) -> tuple[Layer, ...]:
    """After Howard et al., 2017: depthwise convolutions, each followed by one of 1x1 kernels; the stem is for small images."""
    ops = ("relu",) if norm == "none" else ("norm", "relu")
    layers = [Layer("conv", width, ops, padding=1)]
    for factor, stride in ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), (16, 1), (32, 2), (32, 1)):
        layers.append(Layer("depthwise", layers[-1].neurons, ops, stride=stride, padding=1))
        layers.append(Layer("conv", factor * width, ops, kernel=1))
    return (*layers[:-1], replace(layers[-1], ops=(*ops, "global-mean")))


def _residual(blocks: tuple[int, ...], norm: Norm, width: int, photographs: bool = False) -> tuple[Layer, ...]:
    """Stages of basic blocks; from one stage to the next the maps double in number and halve in height and width."""
    before, after = (("relu",), ()) if norm == "none" else (("norm", "relu"), ("norm",))
    stem = Layer("conv", width, (*before, "pool(3,2,1)"), 7, 2, 3) if photographs else Layer("conv", width, before, padding=1)
    layers = [stem]
    for stage, count in enumerate(blocks):
        neurons = width * 2**stage
        for block in range(count):
            start = added = len(layers) + 1  # the number of the last layer so far: the input is 1
            stride = 2 if stage > 0 and block == 0 else 1
            if stride == 2:
                layers.append(Layer("conv", neurons, after, kernel=1, stride=2, inputs=(start,)))
                added = start + 1
            layers.append(Layer("conv", neurons, before, stride=stride, padding=1, inputs=(start,)))
            layers.append(Layer("conv", neurons, after, padding=1))
            layers.append(Layer("sum", neurons, inputs=(added, len(layers) + 1)))
    return (*layers[:-1], replace(layers[-1], ops=("relu", "global-mean")))


def _scaled(layers: tuple[Layer, ...], width: int, usual: int) -> tuple[Layer, ...]:
    return tuple(replace(layer, neurons=max(1, layer.neurons * width // usual)) for layer in layers)


NETWORKS: dict[str, Architecture] = {
    "alexnet": alexnet,
    "small-cnn": small_cnn,
    "mlp": mlp,
    "tiny-mlp": tiny_mlp,
    "resnet18": resnet18,
    "resnet18-imagenet": resnet18_imagenet,
    "resnet10": resnet10,
    "vgg11": vgg11,
    "mobilenet-like": mobilenet_like,
}
ENTRY_POINTS = "afaf.networks"
CHAINS = ("alexnet", "small-cnn", "mlp", "tiny-mlp")  # the networks that the streams' presets are made for


def network_names() -> list[str]:
    return [*NETWORKS, *sorted(point.name for point in entry_points(group=ENTRY_POINTS) if point.name not in NETWORKS)]


def find_network(name: str) -> Architecture:
    """The architecture of this name: of the zoo, an entry point `afaf.networks` of another package, or "package.module:function"."""
    if name in NETWORKS:
        return NETWORKS[name]
    points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
    if not points and ":" not in name:
        raise ConfigError(unknown("network", name, network_names()))
    point = points[0] if points else EntryPoint(name, name, ENTRY_POINTS)
    try:
        found = point.load()
    except Exception as error:  # another package's code
        raise ConfigError(
            f"network.name={name} cannot be loaded ({error}): name a function as package.module:function; "
            "for a file of this folder, set PYTHONPATH=."
        ) from error
    if not callable(found):
        raise ConfigError(f"network.name={name} is no function: it must return hidden layers, or a torch.nn.Module")
    architecture: Architecture = found
    return architecture


def own_norm(name: str) -> Norm:
    """A network's default norm."""
    parameter = inspect.signature(find_network(name)).parameters.get("norm")
    return "batch" if parameter is not None and parameter.default == "batch" else "none"


def network_name(network: str | Given) -> str:
    return network if isinstance(network, str) else type(network).__name__ if isinstance(network, nn.Module) else "layers"


def width_of(spec: NetworkSpec) -> int:
    """The width of a network, also where a preset or the network itself chose it."""
    return spec.hidden[0].neurons


def _made(network: str | Given, options: dict[str, Any]) -> Given:
    """The network itself, or the result of the function of this name, called with those options that it takes."""
    function = find_network(network) if isinstance(network, str) else None
    takes = inspect.signature(function).parameters if function else {}
    name = network_name(network)
    if options.get("width") is not None and "width" not in takes:
        raise ConfigError(f"network '{name}' has no width: leave network.width out")
    taken = {key: value for key, value in options.items() if key in takes and value is not None}
    try:
        made: Any = function(**taken) if function else network
    except ConfigError as error:  # a layer that cannot be: it does not know the network's name
        raise ConfigError(f"network '{name}': {error}") from error
    if not isinstance(made, nn.Module) and not (isinstance(made, tuple) and all(isinstance(layer, Layer) for layer in made)):
        raise ConfigError(f"network '{name}' is {type(made).__name__}: a tuple of Layer or a torch.nn.Module is needed")
    return made


def describe(
    network: str | Given,
    input_shape: tuple[int, ...],
    n_classes: int,
    *,
    dropout: float = 0.2,
    **options: Any,
) -> NetworkSpec:
    """The network for this input and number of classes; norm, dropout_at and width default to its own."""
    made = _made(network, options)
    hidden = trace(made, torch.zeros(1, *input_shape)) if isinstance(made, nn.Module) else made
    spec = NetworkSpec(network_name(network), input_shape, hidden, n_classes, dropout)
    _ = spec.layers  # an input that does not fit is refused here, before anything is built
    return spec


def module_values(network: str | Given, spec: NetworkSpec, **options: Any) -> Parameters:
    """The weights, biases and norms of the module that a described network was traced from."""
    made = _made(network, options)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"network.weights=module needs a torch.nn.Module, and network '{spec.name}' is none: leave it out")
    return traced_values(made, spec)
