"""A part of a network as small dense tensors: the neurons that some outputs depend on."""

from __future__ import annotations

import torch
from torch import Tensor

from afaf.network.forward import Parameters
from afaf.network.ledger import Neurons, reached_back
from afaf.network.ops import Norm
from afaf.network.spec import NetworkSpec


def neurons_that_answer(spec: NetworkSpec, parameters: Parameters, rows: Tensor) -> Neurons:
    """By group, the neurons from which one of these outputs can be reached through live connections; all neurons of the input."""
    device = parameters.weights[0].device
    reach = {s: torch.zeros(spec.layer(s).size, dtype=torch.bool, device=device) for s in spec.groups}
    reach[spec.L][rows] = True
    reach = reached_back(spec, [(weight != 0).any(dim=2) for weight in parameters.weights], reach)
    kept = {s: torch.nonzero(marked).flatten() for s, marked in reach.items()}
    kept[1], kept[spec.L] = torch.arange(spec.layer(1).size, device=device), rows
    return {s: index if len(index) else index.new_zeros(1) for s, index in kept.items()}  # a layer cannot be empty


def part_of(spec: NetworkSpec, parameters: Parameters, kept: Neurons) -> Parameters:
    """The parameters of the kept neurons, copied."""
    weights, biases = [], []
    for weight, bias, edge in zip(parameters.weights, parameters.biases, spec.edges, strict=True):
        weights.append(weight.detach()[kept[edge.target_group]][:, edge.columns(kept[edge.source_group])])
        biases.append(bias.detach()[kept[edge.target_group]])
    norms = {
        layer: Norm(*(tensor.detach()[kept[spec.layer(layer).group]] for tensor in norm.tensors().values()))
        for layer, norm in parameters.norms.items()
    }
    return Parameters(weights, biases, norms)


def multiplications(spec: NetworkSpec, parameters: Parameters) -> int:
    """The multiplications of a forward pass with these parameters, of the whole network or a part."""
    return sum(weight.numel() * edge.positions for weight, edge in zip(parameters.weights, spec.edges, strict=True))
