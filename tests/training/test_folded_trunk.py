"""What stands still gives the same with its constants taken out."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from afaf.network.forward import Parameters, Training, forward
from afaf.network.ops import Norm
from afaf.network.spec import Layer, NetworkSpec
from afaf.training.folded_trunk import InplaceForward, fold_trunk

OPERATIONS: list[tuple[str, ...]] = [
    ("relu",),
    ("relu", "pool"),
    ("relu", "dropout", "pool"),
    ("relu", "pool", "dropout"),
    ("relu", "pool", "norm"),
    ("norm", "relu"),
]


def random_parameters(spec: NetworkSpec, dead: float) -> Parameters:
    """Into a share of the neurons no connection leads."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    weights = [normal(*edge.shape) * (torch.rand(edge.outputs, 1, 1, generator=draw) >= dead) for edge in spec.edges]
    norms = {
        l + 1: Norm(normal(edge.outputs), normal(edge.outputs), normal(edge.outputs), normal(edge.outputs).square() + 0.1)
        for l, edge in enumerate(spec.edges, 1)
        if spec.layer(l + 1).has_norm
    }
    return Parameters(weights, [normal(edge.outputs) for edge in spec.edges], norms)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(OPERATIONS), min_size=2, max_size=2), st.sampled_from([0.0, 0.5, 1.0]), st.integers(2, 4))
def test_without_constants_the_top_is_the_same(then: list[tuple[str, ...]], dead: float, top: int) -> None:
    hidden = (Layer("conv", 9, then[0]), Layer("conv", 70, then[1]), Layer("dense", 12, ("relu", "dropout")))
    spec = NetworkSpec("random", (2, 13, 12), hidden, 3, dropout=0.3)
    parameters = random_parameters(spec, dead)
    samples = torch.arange(5, dtype=torch.int32)
    images = torch.randn(5, 2, 13, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mode = Training({layer: (layer, 7) for layer in range(2, 5)}, samples, norm_moves=False)
    expected = forward(spec, parameters, images, mode=mode, stop=top)
    still = fold_trunk(spec, parameters, {}, top)
    ahead = InplaceForward(**{**vars(mode), "neurons": still.neurons})
    found = still.whole(forward(spec, still.parameters, images, mode=ahead, stop=top))
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert dead == 0 or sum(w.numel() for w in still.parameters.weights) < sum(w.numel() for w in parameters.weights)
