"""The network's tensors: weights (0 where no task owns them), biases, norms, and the biases and norms after each task."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

from afaf.network.forward import EVALUATION, Mode, Observer, Parameters, forward
from afaf.network.ledger import Ledger
from afaf.network.ops import Norm
from afaf.network.spec import NetworkSpec
from afaf.randomness import key, uniform_at

AT_ONCE = 1 << 22  # weights initialised at a time, so that a large layer needs no copies of its size


@dataclass
class Snapshot:
    """Biases and norms after a task: with the owned connections, the network as it was then."""

    biases: list[Tensor]
    norms: dict[int, Norm]


class Network:
    """One fixed-size network. The initial value at a place is a function of the seed and the place alone, or comes
    from the module the network was traced from: `initial` holds the values of all layers but the output."""

    def __init__(
        self,
        spec: NetworkSpec,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        initial: Parameters | None = None,
    ):
        self.spec = spec
        self.seed = seed
        self.device = torch.device(device)
        self.dtype = dtype
        self.initial = initial
        weights = [torch.zeros(edge.shape, dtype=dtype, device=device) for edge in spec.edges]
        biases = [self.initial_bias(l) for l in spec.edge_numbers]
        norms = {layer: self._initial_norm(layer) for layer in spec.normed_layers}
        self.parameters = Parameters(weights, biases, norms)
        self.snapshots: dict[int, Snapshot] = {}

    def weight(self, l: int) -> Tensor:
        return self.parameters.weights[l - 1]

    def bias(self, l: int) -> Tensor:
        return self.parameters.biases[l - 1]

    def __call__(self, x: Tensor, mode: Mode = EVALUATION, observe: Observer | None = None) -> Tensor:
        return forward(self.spec, self.parameters, x, mode=mode, observe=observe)

    # Initial values: PyTorch's default, uniform in ±1/sqrt(fan-in) for weights and biases alike.

    def initial_weights(self, l: int) -> Tensor:
        edge = self.spec.edge(l)
        return self._initial("weights", l, torch.arange(prod(edge.shape), dtype=torch.int32, device=self.device)).reshape(edge.shape)

    def initial_bias(self, l: int) -> Tensor:
        return self._initial("bias", l, torch.arange(self.spec.edge(l).outputs, dtype=torch.int32, device=self.device))

    def _initial(self, kind: Literal["weights", "bias"], l: int, places: Tensor) -> Tensor:
        if self.initial is not None and l < self.spec.E:
            values = self.initial.weights if kind == "weights" else self.initial.biases
            return values[l - 1].flatten()[places.cpu()].to(self.device, self.dtype)
        u = uniform_at(key(self.seed, "initial", f"{kind} {l}"), places)
        bound: float = self.spec.edge(l).fan_in ** -0.5
        return ((2 * u - 1) * bound).to(self.dtype)

    def _initial_norm(self, layer: int) -> Norm:
        if self.initial is not None:
            return Norm(*(tensor.to(self.device, self.dtype, copy=True) for tensor in self.initial.norms[layer].tensors().values()))
        size = self.spec.layer(layer).size
        zeros, ones = (torch.full((size,), value, dtype=self.dtype, device=self.device) for value in (0.0, 1.0))
        return Norm(ones.clone(), zeros.clone(), zeros.clone(), ones.clone())

    def initialise(self, l: int, where: Tensor) -> None:
        """Set new connections to the initial values at their places; nothing is drawn for other places."""
        edge, weight = self.spec.edge(l), self.parameters.weights[l - 1].view(-1)
        size = edge.block // where.shape[2]  # weights that one entry of `where` stands for
        within = torch.arange(size, dtype=torch.int32, device=self.device)
        chosen, first = where.expand(edge.outputs, edge.inputs, -1).flatten(), 0
        for part in chosen.split(max(1, AT_ONCE // size)):
            units = torch.nonzero(part).to(torch.int32) + first
            places = (units * size + within).view(-1)
            weight[places] = self._initial("weights", l, places)
            first += len(part)

    def reset_neurons(self, group: int, neurons: Tensor) -> None:
        """Give these neurons of a group (a mask) the initial biases and norms."""
        for l, edge in enumerate(self.spec.edges, 1):
            if edge.target_group == group:
                self.bias(l)[neurons] = self.initial_bias(l)[neurons]
        for layer, norm in self.parameters.norms.items():
            if self.spec.layer(layer).group == group:
                for tensor, initial in zip(norm.tensors().values(), self._initial_norm(layer).tensors().values(), strict=True):
                    tensor[neurons] = initial[neurons]

    def grow_outputs(self, rows: int) -> None:
        """Append output rows, with the initial values they would have had if reserved from the start."""
        self.spec = self.spec.with_classes(self.spec.n_classes + rows)
        weight, bias = self.parameters.weights[-1], self.parameters.biases[-1]
        self.parameters.weights[-1] = torch.cat([weight, weight.new_zeros(rows, *weight.shape[1:])])
        self.parameters.biases[-1] = torch.cat([bias, self.initial_bias(self.spec.E)[-rows:]])

    # The network after an earlier task.

    def remember(self, task: int) -> None:
        """Store the biases and norms after a task, for `as_of`."""
        self.snapshots[task] = Snapshot(
            [bias.clone() for bias in self.parameters.biases],
            {layer: norm.clone() for layer, norm in self.parameters.norms.items()},
        )

    def as_of(self, task: int, ledger: Ledger) -> Network:
        """The network as it was after a task; its weights follow from the ledger, since owned weights never change."""
        if not ledger.keeps_past:
            raise ValueError("weights of earlier tasks have changed since: the network after that task cannot be restored")
        if task not in self.snapshots:
            raise ValueError(f"the biases and norms after task {task} were not stored: under strict isolation they are as they are now")
        snapshot = self.snapshots[task]
        rows = len(snapshot.biases[-1])
        then = Network.__new__(Network)
        then.spec, then.seed, then.device, then.dtype = self.spec.with_classes(rows), self.seed, self.device, self.dtype
        then.initial = self.initial
        weights = [
            torch.where((owner > 0) & (owner <= task), weight, torch.zeros((), dtype=self.dtype, device=self.device))
            for owner, weight in zip(ledger.owners, self.parameters.weights, strict=True)
        ]
        weights[-1] = weights[-1][:rows]
        then.parameters = Parameters(weights, snapshot.biases, snapshot.norms)
        then.snapshots = {t: s for t, s in self.snapshots.items() if t <= task}
        return then
