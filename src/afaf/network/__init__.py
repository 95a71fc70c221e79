"""Networks: described as data, their tensors, their forward pass, and who owns what."""

from afaf.network.tracing import trace

__all__ = ["trace"]
