"""The weights of a layer's parts, read and in their storage form. The models make mixers and feed-forwards of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pocketllm_torch.layers.linear import Linear
from pocketllm_torch.layers.norm import RMSNorm


@dataclass(frozen=True)
class AttentionWeights:
    """``qkv``: queries, keys and values side by side, and behind them the gates of the output where there are any.

    Norms of each head's queries and keys are None in families without them.
    """

    qkv: Linear
    output: Linear
    query_norm: RMSNorm | None = None
    key_norm: RMSNorm | None = None


@dataclass(frozen=True)
class DeltaNetWeights:
    """``inputs``: convolution channels, z, alpha and beta, side by side. Vectors are float32."""

    inputs: Linear
    conv: torch.Tensor
    decay: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    output: Linear


@dataclass(frozen=True)
class FeedForwardWeights:
    """``gate_up``: both, side by side."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class ExpertWeights:
    """A mixture of experts, with one that all rows share."""

    router: Linear
    experts: list[FeedForwardWeights]
    shared: FeedForwardWeights
    shared_gate: Linear
