"""A torch.nn.Module as a described network: its layers, edges and sums, found by following its forward pass."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from afaf.errors import ConfigError
from afaf.network.spec import Layer

SUPPORTED = "Conv2d, Linear, BatchNorm, ReLU, MaxPool2d, AdaptiveAvgPool2d(1), Dropout, Flatten, Identity and sums"


def trace(module: nn.Module, example: Tensor) -> tuple[Layer, ...]:
    """The hidden layers of a module that classifies: its last Linear layer becomes the output, of as many classes as a stream brings.

    `example` is a batch of one image. Weights are not taken over; dropout has the rate of the setting network.dropout. A module that
    decides by values, or an operation that no layer has, is a ConfigError that names the place.
    """
    name = type(module).__name__
    try:
        graph = fx.symbolic_trace(module)
        ShapeProp(graph).propagate(example)
    except Exception as error:  # whatever the module does
        raise ConfigError(f"{name} cannot be traced: {error}; its forward pass must not depend on the values of the image") from error
    return _Tracer(name, graph).layers()


class _Tracer:
    """Goes through the traced operations in order; each value belongs to a layer, to which operations are added."""

    def __init__(self, name: str, graph: fx.GraphModule):
        self.name, self.graph, self.modules = name, graph, dict(graph.named_modules())
        self.found: list[Layer] = []
        self.layer_of: dict[fx.Node, int] = {}

    def layers(self) -> tuple[Layer, ...]:
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                self._check(not self.layer_of, node, "it has several inputs; a network here has one")
                self.layer_of[node] = 1
            elif node.op == "output":
                last = self.found[-1] if self.found else None
                dense = (
                    last is not None and last.kind == "dense" and not last.ops and self.layer_of.get(node.args[0]) == len(self.found) + 1
                )
                self._check(dense, node, "it must end with a Linear layer, which becomes the output")
            elif "tensor_meta" in node.meta:  # others are sizes, which are the same for every image
                self.layer_of[node] = self._layer(node)
        return tuple(self.found[:-1])

    def _layer(self, node: fx.Node) -> int:
        target = self.modules[str(node.target)] if node.op == "call_module" else node.target
        key = type(target) if node.op == "call_module" else target
        for kinds, make in HANDLERS:
            if key in kinds:
                return make(self, node, target)
        raise self._error(node, f"{getattr(key, '__name__', key)} is not supported; these are: {SUPPORTED}")

    def source(self, node: fx.Node, place: int = 0) -> int:
        found = node.args[place] if len(node.args) > place else None
        self._check(isinstance(found, fx.Node) and found in self.layer_of, node, "it reads something that is no layer")
        return self.layer_of[found]  # type: ignore[index]

    def reads(self, node: fx.Node) -> tuple[int, ...]:
        """The inputs of a new layer; empty where it reads the layer before, as a description has it."""
        source = self.source(node)
        return () if source == len(self.found) + 1 else (source,)

    def add(self, layer: Layer) -> int:
        self.found.append(layer)
        return len(self.found) + 1

    def operation(self, node: fx.Node, text: str) -> int:
        """Add an operation to the layer that is read, or to a copy of it where others read it as it is."""
        number, below = self.source(node), node.args[0]
        assert isinstance(below, fx.Node)
        self._check(number > 1, node, "the images come first to a Conv2d or a Linear layer")
        layer = self.found[number - 2]
        readers = [user for other, of in self.layer_of.items() if of == number for user in other.users if user not in self.layer_of]
        if readers == [node] and text not in layer.ops:
            self.found[number - 2] = replace(layer, ops=(*layer.ops, text))
            return number
        return self.add(Layer("sum", layer.neurons, (text,), inputs=(number,)))

    def one(self, node: fx.Node, value: Any, what: str) -> int:
        """A whole number that holds for height and width alike."""
        pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
        self._check(
            len(set(pair)) == 1 and isinstance(pair[0], int), node, f"{what} = {value}: one number for height and width is supported"
        )
        return int(pair[0])

    def _check(self, fact: bool, node: fx.Node, what: str) -> None:
        if not fact:
            raise self._error(node, what)

    def _error(self, node: fx.Node, what: str) -> ConfigError:
        place = f"submodule '{node.target}'" if node.op == "call_module" else f"'{node.name}'"
        return ConfigError(f"{self.name}, {place}: {what}")


def _conv(tracer: _Tracer, node: fx.Node, module: nn.Conv2d) -> int:
    tracer._check(module.groups == 1 and tracer.one(node, module.dilation, "dilation") == 1, node, "groups and dilation are not supported")
    tracer._check(module.padding_mode == "zeros" and not isinstance(module.padding, str), node, "padding is a number of zeros")
    kernel, stride, padding = (tracer.one(node, getattr(module, name), name) for name in ("kernel_size", "stride", "padding"))
    return tracer.add(Layer("conv", module.out_channels, (), kernel, stride, padding, tracer.reads(node)))


def _dense(tracer: _Tracer, node: fx.Node, module: nn.Linear) -> int:
    return tracer.add(Layer("dense", module.out_features, (), inputs=tracer.reads(node)))


def _sum(tracer: _Tracer, node: fx.Node, _: Any) -> int:
    below = (tracer.source(node, 0), tracer.source(node, 1))
    tracer._check(min(below) > 1, node, "the images themselves are added; lead them through a convolution first")
    return tracer.add(Layer("sum", tracer.found[below[0] - 2].neurons, (), inputs=below))


def _pool(tracer: _Tracer, node: fx.Node, module: Any) -> int:
    given: Mapping[str, Any] = vars(module) if isinstance(module, nn.Module) else dict(zip(POOL, node.args[1:], strict=False)) | node.kwargs
    size = tracer.one(node, given["kernel_size"], "kernel_size")
    stride = tracer.one(node, given.get("stride") or size, "stride")
    padding = tracer.one(node, given.get("padding", 0), "padding")
    plain = tracer.one(node, given.get("dilation", 1), "dilation") == 1 and not given.get("ceil_mode", False)
    tracer._check(plain, node, "dilation and ceil_mode are not supported")
    return tracer.operation(node, "pool" if (size, stride, padding) == (2, 2, 0) else f"pool({size},{stride},{padding})")


def _global_mean(tracer: _Tracer, node: fx.Node, module: Any) -> int:
    size = module.output_size if isinstance(module, nn.Module) else node.args[1]
    tracer._check(size in (1, (1, 1), [1, 1]), node, f"output_size = {size}: a mean over all positions (1) is supported")
    return tracer.operation(node, "global-mean")


def _mean(tracer: _Tracer, node: fx.Node, _: Any) -> int:
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    tracer._check(
        sorted(d % 4 for d in dims) == [2, 3] if isinstance(dims, (tuple, list)) else False, node, "a mean over (2, 3) is supported"
    )
    return tracer.operation(node, "global-mean")


def _flat(tracer: _Tracer, node: fx.Node, _: Any) -> int:
    """Rows of values, image by image, as a dense layer reads its input anyway."""
    shape = node.meta["tensor_meta"].shape
    tracer._check(
        len(shape) == 2, node, f"it gives values of shape {tuple(shape)}: flattening all but the images (dimension 1 on) is supported"
    )
    return tracer.source(node)


def _named(text: str) -> Callable[[_Tracer, fx.Node, Any], int]:
    return lambda tracer, node, _: tracer.operation(node, text)


POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
HANDLERS: tuple[tuple[tuple[Any, ...], Callable[[_Tracer, fx.Node, Any], int]], ...] = (
    ((nn.Conv2d,), _conv),
    ((nn.Linear,), _dense),
    ((nn.BatchNorm1d, nn.BatchNorm2d), _named("norm")),
    ((nn.ReLU, F.relu, torch.relu, "relu", "relu_"), _named("relu")),
    ((nn.Dropout, nn.Dropout1d, F.dropout), _named("dropout")),
    ((nn.MaxPool2d, F.max_pool2d, torch.max_pool2d), _pool),
    ((nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d), _global_mean),
    (("mean", torch.mean), _mean),
    ((operator.add, operator.iadd, torch.add, "add", "add_"), _sum),
    ((nn.Flatten, torch.flatten, "flatten", "view", "reshape"), _flat),
    ((nn.Identity, "contiguous"), lambda tracer, node, _: tracer.source(node)),
)
