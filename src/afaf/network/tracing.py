"""A torch.nn.Module as a described network: its layers, edges and sums, found by following its forward pass."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from afaf.errors import ConfigError
from afaf.network.forward import Parameters
from afaf.network.ops import EPSILON, Norm
from afaf.network.spec import Layer, NetworkSpec

SUPPORTED = (
    "Conv2d, Linear, BatchNorm, ReLU, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d(1), a mean over (2, 3), Dropout, Flatten, Identity and sums"
)


def trace(module: nn.Module, example: Tensor) -> tuple[Layer, ...]:
    """The hidden layers of a classifier; its last Linear layer becomes the output, with as many classes as the stream.

    `example` is a batch of one image. Dropout gets the rate of the setting network.dropout. A forward pass that depends on the values of
    the image, or an unsupported operation, raises a ConfigError that names the submodule. The module is not changed;
    `traced_values` returns its weights.
    """
    return _Tracer(module, example).layers()


def traced_values(module: nn.Module, spec: NetworkSpec) -> Parameters:
    """Weights, biases and norms of a module, for all layers of the network traced from it but the output."""
    tracer = _Tracer(module, torch.zeros(1, *spec.input_shape))
    if tracer.layers() != spec.hidden:
        raise ConfigError(f"{tracer.name} is not the network '{spec.name}': its layers are others")
    return tracer.values(spec)


class _Value(fx.Proxy):
    """Records `x += y` as the in-place operation that it is; torch.fx takes it for `x = x + y`."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _PlacesTracer(fx.Tracer):
    """Tracks the current submodule; if the forward pass fails, `place` is the submodule that failed."""

    place = ""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        outside, self.place = self.place, self.path_of_module(m)
        found = super().call_module(m, forward, args, kwargs)
        self.place = outside
        return found


class _Shapes(fx.Interpreter):
    """Records the shape of each tensor result, and the current place."""

    place = ""

    def run_node(self, n: fx.Node) -> Any:
        self.place = str(n.target) if n.op == "call_module" else n.name
        result = super().run_node(n)
        if isinstance(result, Tensor):
            n.meta["shape"] = tuple(result.shape)
        return result


def _followed(module: nn.Module, example: Tensor) -> fx.GraphModule:
    """The operations of a copy of the module in order, with the shapes of their results."""
    name, tracer = type(module).__name__, _PlacesTracer()
    try:
        copied = copy.deepcopy(module).cpu().eval()
        graph = fx.GraphModule(copied, tracer.trace(copied))
    except Exception as error:  # whatever the module does
        place = f", submodule '{tracer.place}'" if tracer.place else ""
        said = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{name}{place} cannot be traced ({said}): its forward pass must take one tensor and must not depend on the values in it"
        ) from error
    shapes = _Shapes(graph)
    shapes.extra_traceback = False
    try:
        with torch.no_grad():
            shapes.run(example.to(next(graph.parameters(), example).dtype))
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise ConfigError(f"{name}, '{shapes.place}': images of shape {tuple(example.shape[1:])} do not fit ({said})") from error
    return graph


class _Tracer:
    """Goes through the traced operations in order; each value belongs to a layer, to which operations are added."""

    def __init__(self, module: nn.Module, example: Tensor):
        self.name, self.graph = type(module).__name__, _followed(module, example)
        self.modules, self.images = dict(self.graph.named_modules()), len(example)
        self.found: list[Layer] = []
        self.layer_of: dict[fx.Node, int] = {}
        self.products: list[tuple[fx.Node, nn.Conv2d | nn.Linear]] = []  # in the order of the edges
        self.norms: dict[int, tuple[fx.Node, nn.modules.batchnorm._BatchNorm]] = {}  # by layer

    def layers(self) -> tuple[Layer, ...]:
        self._check_changed_in_place()
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
            elif "shape" in node.meta:  # others are sizes, which are the same for every image
                self.layer_of[node], shape = self._layer(node), node.meta["shape"]
                self._check(
                    shape[0] == self.images, node, f"it gives values of shape {shape} for {self.images} image(s): not a row for each"
                )
        return tuple(self.found[:-1])

    def _check_changed_in_place(self) -> None:
        """Refuse to change a value that is read later: PyTorch's readers then see the change, those of a described network do not."""
        place = {node: i for i, node in enumerate(self.graph.graph.nodes)}
        same: dict[fx.Node, list[fx.Node]] = {}  # values in the same memory, in their order; the list is shared by all of them
        for node in place:
            of = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
            changes = of is not None and self._in_place(node)
            if of is None or not (changes or self._called(node) in SAME_MEMORY):
                same[node] = [node]
                continue
            late = [user.name for value in same[of] for user in value.users if place[user] > place[node] and "shape" in user.meta]
            self._check(
                not (changes and late), node, f"it changes in place what '{', '.join(late)}' reads later: use one that is not in place"
            )
            same[node] = same[of]
            same[node].append(node)

    def _in_place(self, node: fx.Node) -> bool:
        called = self.modules[str(node.target)] if node.op == "call_module" else node.target
        if isinstance(called, nn.Module):
            return bool(getattr(called, "inplace", False))
        position = IN_PLACE.get(called)
        given = node.args[position] if position is not None and len(node.args) > position else node.kwargs.get("inplace", False)
        return bool(given) or called is operator.iadd or (node.op == "call_method" and str(called).endswith("_"))

    def _called(self, node: fx.Node) -> Any:
        """The type of module, the function or the name of the method."""
        return type(self.modules[str(node.target)]) if node.op == "call_module" else node.target

    def values(self, spec: NetworkSpec) -> Parameters:
        """The weights, biases and norms of the layers' modules."""
        weights, biases = [], []
        for (node, module), edge in zip(self.products[:-1], spec.edges[:-1], strict=True):
            bias = torch.zeros(edge.outputs) if module.bias is None else module.bias.detach()
            kernels = self._finite(node, module.weight.detach())
            weights.append(edge.product.weights_of(kernels).reshape(edge.shape))
            biases.append(self._finite(node, bias))
        norms = {}
        for layer, (node, norm) in self.norms.items():
            self._check(norm.eps == EPSILON, node, f"eps = {norm.eps}: the weights of a norm are kept for eps = {EPSILON}")
            self._check(norm.running_mean is not None, node, "it has no running statistics to keep")
            ones = torch.ones(norm.num_features)
            gain, shift = (ones, 0 * ones) if norm.weight is None else (norm.weight, norm.bias)
            norms[layer] = Norm(*(self._finite(node, t.detach().clone()) for t in (gain, shift, norm.running_mean, norm.running_var)))  # type: ignore[union-attr]
        return Parameters(weights, biases, norms)

    def _finite(self, node: fx.Node, tensor: Tensor) -> Tensor:
        self._check(bool(torch.isfinite(tensor).all()), node, "its weights are not all finite, so they cannot be kept")
        return tensor

    def _layer(self, node: fx.Node) -> int:
        key, target = self._called(node), self.modules[str(node.target)] if node.op == "call_module" else node.target
        for kinds, make in HANDLERS:
            if key in kinds:
                return make(self, node, target)
        raise self._error(node, f"{getattr(key, '__name__', key)} is not supported; these are: {SUPPORTED}")

    def source(self, node: fx.Node, place: int = 0) -> int:
        found = node.args[place] if len(node.args) > place else None
        self._check(isinstance(found, fx.Node) and found in self.layer_of, node, "it reads something that is no layer")
        return self.layer_of[found]  # type: ignore[index]

    def product(self, node: fx.Node, module: nn.Conv2d | nn.Linear, layer: Layer) -> int:
        """Add a layer with weights; `inputs` is left empty if it reads the layer before."""
        self._check(
            all(module is not other for _, other in self.products), node, "it is used twice: weights of two layers cannot be shared"
        )
        self.products.append((node, module))
        source = self.source(node)
        return self.add(layer if source == len(self.found) + 1 else replace(layer, inputs=(source,)))

    def add(self, layer: Layer) -> int:
        self.found.append(layer)
        return len(self.found) + 1

    def operation(self, node: fx.Node, text: str) -> int:
        """Add an operation to the layer that it reads, or to a copy of that layer if others read it unchanged."""
        number, below = self.source(node), node.args[0]
        assert isinstance(below, fx.Node)
        self._check(number > 1, node, "the images come first to a Conv2d or a Linear layer")
        layer = self.found[number - 2]
        users = [user for other, of in self.layer_of.items() if of == number for user in other.users]
        readers = [user for user in users if self.layer_of.get(user) != number]  # also those that came before
        if readers == [node] and text not in layer.ops:
            self.found[number - 2] = replace(layer, ops=(*layer.ops, text))
            return number
        return self.add(Layer("sum", layer.neurons, (text,), inputs=(number,)))

    def one(self, node: fx.Node, value: Any, what: str) -> int:
        """A whole number, the same for height and width."""
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
    depthwise = module.groups == module.in_channels == module.out_channels and module.groups > 1
    tracer._check(tracer.one(node, module.dilation, "dilation") == 1, node, "dilation is not supported")
    tracer._check(module.padding_mode == "zeros" and not isinstance(module.padding, str), node, "padding is a number of zeros")
    kernel, stride, padding = (tracer.one(node, getattr(module, name), name) for name in ("kernel_size", "stride", "padding"))
    layer = Layer("depthwise" if depthwise else "conv", module.out_channels, (), kernel, stride, padding)
    return tracer.product(node, module, layer if depthwise else replace(layer, groups=module.groups))


def _linear(tracer: _Tracer, node: fx.Node, module: nn.Linear) -> int:
    shape = node.args[0].meta["shape"] if isinstance(node.args[0], fx.Node) else ()
    tracer._check(
        len(shape) == 2, node, f"it reads values of shape {shape}, only the last dimension of which it multiplies: flatten them first"
    )
    return tracer.product(node, module, Layer("dense", module.out_features, ()))


def _norm(tracer: _Tracer, node: fx.Node, module: nn.modules.batchnorm._BatchNorm) -> int:
    tracer._check(all(module is not other for _, other in tracer.norms.values()), node, "it is used twice: norms cannot be shared")
    layer = tracer.operation(node, "norm")
    neurons = tracer.found[layer - 2].neurons
    tracer._check(module.num_features == neurons, node, f"it normalises {module.num_features} values, but the layer has {neurons} neurons")
    tracer.norms[layer] = (node, module)
    return layer


def _sum(tracer: _Tracer, node: fx.Node, _: Any) -> int:
    below = (tracer.source(node, 0), tracer.source(node, 1))
    tracer._check(not node.kwargs, node, "a plain sum of two layers is supported")
    shapes = [given.meta["shape"] for given in node.all_input_nodes]
    tracer._check(all(shape == node.meta["shape"] for shape in shapes), node, f"it adds values of different shapes: {shapes}")
    tracer._check(min(below) > 1, node, "the images themselves are added; lead them through a convolution first")
    return tracer.add(Layer("sum", tracer.found[below[0] - 2].neurons, (), inputs=below))


def _pool(tracer: _Tracer, node: fx.Node, module: Any, name: str) -> int:
    order = MEAN_POOL if name == "mean-pool" else POOL
    in_call = dict(zip(order, node.args[1:], strict=False)) | node.kwargs
    given: Mapping[str, Any] = vars(module) if isinstance(module, nn.Module) else in_call
    size = tracer.one(node, given["kernel_size"], "kernel_size")
    stride = tracer.one(node, given.get("stride") or size, "stride")
    padding = tracer.one(node, given.get("padding", 0), "padding")
    plain = tracer.one(node, given.get("dilation", 1), "dilation") == 1 and not given.get("ceil_mode", False)
    tracer._check(plain, node, "dilation and ceil_mode are not supported")
    numbers = [size, stride, padding]
    if name == "mean-pool":
        tracer._check(not padding and given.get("divisor_override") is None, node, "padding and divisor_override are not supported")
        numbers = numbers[:2]
    return tracer.operation(node, name if numbers in ([2, 2, 0], [2, 2]) else f"{name}({','.join(map(str, numbers))})")


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
    """Flatten each image to a row, as a dense layer reads its input anyway."""
    shape = node.meta["shape"]
    tracer._check(len(shape) == 2, node, f"it gives values of shape {shape}: flattening all but the images (dimension 1 on) is supported")
    return tracer.source(node)


POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
MEAN_POOL = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
FLAT = (nn.Flatten, torch.flatten, "flatten", "view", "reshape")
SAME = (nn.Identity, "contiguous")
SAME_MEMORY = (*FLAT, *SAME)  # their result is the value that they read, in another shape
IN_PLACE: Mapping[Any, int] = {F.relu: 1, F.dropout: 3}  # the position of the argument `inplace`
HANDLERS: tuple[tuple[tuple[Any, ...], Callable[[_Tracer, fx.Node, Any], int]], ...] = (
    ((nn.Conv2d,), _conv),
    ((nn.Linear,), _linear),
    ((nn.BatchNorm1d, nn.BatchNorm2d), _norm),
    ((nn.ReLU, F.relu, torch.relu, "relu", "relu_"), lambda tracer, node, _: tracer.operation(node, "relu")),
    ((nn.Dropout, F.dropout), lambda tracer, node, _: tracer.operation(node, "dropout")),
    ((nn.MaxPool2d, F.max_pool2d, torch.max_pool2d), partial(_pool, name="pool")),
    ((nn.AvgPool2d, F.avg_pool2d), partial(_pool, name="mean-pool")),
    ((nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d), _global_mean),
    (("mean", torch.mean), _mean),
    ((operator.add, operator.iadd, torch.add, "add", "add_"), _sum),
    (FLAT, _flat),
    (SAME, lambda tracer, node, _: tracer.source(node)),
)
