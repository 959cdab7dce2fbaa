"""A Gated DeltaNet layer's mixer, computed in float32."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F

from pocketllm_torch.configs.qwen3_5_config import DeltaNetShape
from pocketllm_torch.kernels.delta_net.convolution import convolve, convolve_single
from pocketllm_torch.kernels.selection import select
from pocketllm_torch.models.layer import StepContext
from pocketllm_torch.weights.parts import DeltaNetWeights

_NORM_EPS = 1e-6


class DeltaNetMixer:
    """One product for what enters the convolution, the gate and both rates; the recurrence; the output's product.

    Args:
        state_layer: the layer's place among those with a state.
    """

    def __init__(self, weights: DeltaNetWeights, shape: DeltaNetShape, *, eps: float, state_layer: int) -> None:
        self._weights = weights
        self._shape = shape
        self._eps = eps
        self._state_layer = state_layer
        device = weights.norm.device
        self._single = select("delta_rule_single", device, torch.float32).implementation.callable
        self._span = select("delta_rule_span", device, torch.float32).implementation.callable

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        weights, shape, states = self._weights, self._shape, step.caches.states
        assert states is not None
        values = shape.num_value_heads
        width = values * shape.value_dim
        mixed, z, alpha, beta = _split(weights.inputs(x).float(), shape.num_channels, width, values, values)
        g = weights.decay * F.softplus(alpha + weights.dt_bias)
        b = beta.sigmoid()
        o = x.new_empty((x.shape[0], values, shape.value_dim), dtype=torch.float32)
        recurrent = states.of_layer("recurrent", self._state_layer)
        tails = states.of_layer("tail", self._state_layer)
        rows = step.layout.states
        for span, slot in rows.spans:
            convolved, tail = convolve(mixed[span], tails[slot], weights.conv)
            o[span] = self._span(*self._heads(convolved), g[span], b[span], recurrent[slot])
            tails[slot] = tail
        if rows.singles is not None and rows.slots is not None:
            convolved, tail = convolve_single(mixed[rows.singles], tails.index_select(0, rows.slots), weights.conv)
            moved = recurrent.index_select(0, rows.slots)
            o[rows.singles] = self._single(*self._heads(convolved), g[rows.singles], b[rows.singles], moved)
            recurrent.index_copy_(0, rows.slots, moved)
            tails.index_copy_(0, rows.slots, tail)
        scale = torch.rsqrt(o.square().mean(-1, keepdim=True) + self._eps)
        gated = o * scale * weights.norm * F.silu(_by_head(z, shape.value_dim))
        return weights.output(gated.flatten(1).to(x.dtype))

    def _heads(self, convolved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Channels [T, C] -> q and k [T, value heads, key_dim], normalised, q scaled; v [T, value heads, value_dim]."""
        shape = self._shape
        keys = shape.num_key_heads * shape.key_dim
        q, k, v = _split(convolved, keys, keys, convolved.shape[1] - 2 * keys)
        per_key = shape.num_value_heads // shape.num_key_heads
        q, k = (_normalised(_by_head(x, shape.key_dim)).repeat_interleave(per_key, dim=1) for x in (q, k))
        return q * shape.key_dim**-0.5, k, _by_head(v, shape.value_dim)


def _normalised(x: torch.Tensor) -> torch.Tensor:
    """x / |x| over the last dimension."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _NORM_EPS)


def _by_head(x: torch.Tensor, width: int) -> torch.Tensor:
    """[T, heads * width] -> [T, heads, width], a view also of a slice of columns."""
    return x.view(x.shape[0], -1, width)


def _split(x: torch.Tensor, *widths: int) -> list[torch.Tensor]:
    """The columns of x [T, sum of widths], side by side parts."""
    ends = list(itertools.accumulate(widths))
    return [x[:, end - width : end] for end, width in zip(ends, widths, strict=True)]
