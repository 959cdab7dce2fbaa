"""Gated feed-forwards: one for all rows, or several experts of which each row takes some."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from pocketllm_torch.weights.parts import ExpertWeights, FeedForwardWeights

Activation = Callable[[torch.Tensor], torch.Tensor]


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


class GatedFeedForward:
    """down(activation(gate(x)) * up(x))."""

    def __init__(self, weights: FeedForwardWeights, activation: Activation = F.silu) -> None:
        self._gate_up = weights.gate_up
        self._down = weights.down
        self._activation = activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, dim=1)
        return self._down(self._activation(gate).mul_(up))


class ExpertFeedForward:
    """The ``num_routed`` experts that the router finds best for a row, by their weights, and the shared one, gated."""

    def __init__(self, weights: ExpertWeights, num_routed: int) -> None:
        self._router = weights.router
        self._experts = [GatedFeedForward(expert) for expert in weights.experts]
        self._shared = GatedFeedForward(weights.shared)
        self._shared_gate = weights.shared_gate
        self._num_routed = num_routed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        probabilities = self._router(x).float().softmax(dim=-1)
        weights, routed = probabilities.topk(self._num_routed, dim=-1)
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)
        out = self._shared(x) * self._shared_gate(x).sigmoid()
        for index in sorted(set(routed.flatten().tolist())):
            rows, places = (routed == index).nonzero(as_tuple=True)
            answer = self._experts[index](x[rows])
            out.index_add_(0, rows, answer * weights[rows, places].unsqueeze(1))
        return out
