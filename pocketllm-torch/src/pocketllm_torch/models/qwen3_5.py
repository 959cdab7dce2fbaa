"""Qwen3.5, dense and mixture of experts: Gated DeltaNet layers with full attention in every n-th.

    x = x + mixer(norm(x))        mixer: gated attention or Gated DeltaNet
    x = x + feed_forward(norm(x))

Gated attention multiplies what attention returns by sigmoid(gate), head by head. The DeltaNet is computed in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from pocketllm_torch.layers import delta_net
from pocketllm_torch.layers.attention import paged_attention
from pocketllm_torch.layers.caches import Caches
from pocketllm_torch.layers.kv_cache import KVCache
from pocketllm_torch.layers.linear import Linear
from pocketllm_torch.layers.norm import RMSNorm
from pocketllm_torch.layers.rope import RotaryTable, inverse_frequencies, rope_settings, rotate_
from pocketllm_torch.layers.row_layout import RowLayout
from pocketllm_torch.layers.state_cache import StateCache
from pocketllm_torch.models.precision import Precision
from pocketllm_torch.models.qwen3_5_config import Qwen35Config
from pocketllm_torch.models.qwen3_5_weights import (
    DeltaNet,
    ExpertFeedForward,
    FeedForward,
    GatedAttention,
    Qwen35Layer,
    Qwen35Weights,
    gguf_name,
)
from pocketllm_torch.models.weights import WeightReader

Progress = Callable[[float], None]


class Qwen35Model:
    """The weights and the forward pass. Threads: one at a time."""

    def __init__(
        self,
        config: Qwen35Config,
        embedding: torch.Tensor,
        layers: list[Qwen35Layer],
        norm: RMSNorm,
        head: Linear,
        rotary: RotaryTable,
        dtype: torch.dtype,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rotary = rotary

    gguf_name = staticmethod(gguf_name)
    sizes = Qwen35Config.from_mapping

    @classmethod
    def load(
        cls,
        config: Mapping[str, object],
        weights: WeightReader,
        precision: Precision,
        max_positions: int,
        progress: Progress,
    ) -> Qwen35Model:
        """Read every weight, in the storage form of ``precision``; see :meth:`Decoder.load`."""
        sizes = Qwen35Config.from_mapping(config)
        load = Qwen35Weights(sizes, weights, precision)
        table = weights.read("model.embed_tokens.weight", (sizes.vocab_size, sizes.hidden_size))
        layers = []
        for index in range(sizes.num_layers):
            layers.append(load.layer(index))
            progress((index + 1) / (sizes.num_layers + 1))
        tied = bool(config.get("tie_word_embeddings")) or not weights.has("lm_head.weight")
        head = table if tied else weights.read("lm_head.weight", (sizes.vocab_size, sizes.hidden_size))
        model = cls(
            sizes,
            precision.table(table),
            layers,
            load.norm("model.norm.weight", sizes.hidden_size),
            precision.linear(head, None, long_chunks=False),
            RotaryTable(inverse_frequencies(rope_settings(config), sizes.rotary_dim), max_positions, precision.device),
            precision.compute_dtype,
        )
        weights.check_all_read(ignore=("lm_head.weight",) if tied else ())
        progress(1.0)
        return model

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, layout: RowLayout, caches: Caches
    ) -> torch.Tensor:
        """token_ids [T], positions [T] -> the residual stream after the last layer [T, hidden_size]."""
        angles = self._rotary.at(positions)
        x = F.embedding(token_ids, self._embedding).to(self.dtype)
        kv_layer = state_layer = 0
        for layer in self._layers:
            mixer, normed = layer.mixer, layer.input_norm(x)
            if isinstance(mixer, DeltaNet):
                assert caches.states is not None
                x.add_(self._mix(mixer, normed, layout, caches.states, state_layer))
                state_layer += 1
            else:
                x.add_(self._attend(mixer, normed, angles, layout, caches.kv, kv_layer))
                kv_layer += 1
            x.add_(feed_forward(layer.feed_forward, layer.feed_forward_norm(x), self.config))
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [R, hidden_size] from :meth:`forward` -> float32 logits [R, vocab_size]."""
        return self._head(self._norm(hidden)).float()

    def _attend(
        self,
        mixer: GatedAttention,
        x: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        layout: RowLayout,
        cache: KVCache,
        kv_layer: int,
    ) -> torch.Tensor:
        config = self.config
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        qkvg = mixer.qkvg(x)
        qkv = qkvg[:, : (heads + 2 * kv_heads) * head_dim]
        rotated = _by_head(qkv, head_dim)[:, : heads + kv_heads]
        rotated[:, :heads].copy_(mixer.query_norm(rotated[:, :heads]))
        rotated[:, heads:].copy_(mixer.key_norm(rotated[:, heads:]))
        rotate_(rotated[..., : config.rotary_dim], *angles)
        attended = paged_attention(qkv, cache, kv_layer, layout, heads, head_dim**-0.5)
        return mixer.output(attended.mul_(qkvg[:, qkv.shape[1] :].sigmoid()))

    def _mix(self, mixer: DeltaNet, x: torch.Tensor, layout: RowLayout, states: StateCache, layer: int) -> torch.Tensor:
        shape = self.config.delta_net
        values, channels = shape.num_value_heads, shape.num_channels
        width = values * shape.value_dim
        mixed, z, alpha, beta = _split(mixer.inputs(x).float(), channels, width, values, values)
        g = mixer.decay * F.softplus(alpha + mixer.dt_bias)
        b = beta.sigmoid()
        o = x.new_empty((x.shape[0], values, shape.value_dim), dtype=torch.float32)
        recurrent, tails = states.of_layer("recurrent", layer), states.of_layer("tail", layer)
        for span, slot in layout.states.spans:
            convolved, tail = delta_net.convolve(mixed[span], tails[slot], mixer.conv)
            q, k, v = self._heads(convolved)
            o[span] = delta_net.chunked(q, k, v, g[span], b[span], recurrent[slot])
            tails[slot] = tail
        rows, slots = layout.states.singles, layout.states.slots
        if rows is not None and slots is not None:
            # [B, K, C]: the rows before, then the new one.
            joined = torch.cat([tails.index_select(0, slots), mixed[rows].unsqueeze(1)], dim=1)
            convolved = F.silu((joined * mixer.conv.T).sum(dim=1))
            q, k, v = self._heads(convolved)
            moved = recurrent.index_select(0, slots)
            o[rows] = delta_net.recurrent(q, k, v, g[rows], b[rows], moved)
            recurrent.index_copy_(0, slots, moved)
            tails.index_copy_(0, slots, joined[:, 1:])
        scale = torch.rsqrt(o.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        gated = o * scale * mixer.norm * F.silu(_by_head(z, shape.value_dim))
        return mixer.output(gated.flatten(1).to(x.dtype))

    def _heads(self, convolved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Channels [T, C] -> q and k [T, value heads, key_dim], normalised, q scaled; v [T, value heads, value_dim]."""
        shape = self.config.delta_net
        keys = shape.num_key_heads * shape.key_dim
        q, k, v = _split(convolved, keys, keys, convolved.shape[1] - 2 * keys)
        per_key = shape.num_value_heads // shape.num_key_heads
        q, k = (delta_net.normalised(_by_head(x, shape.key_dim)).repeat_interleave(per_key, dim=1) for x in (q, k))
        return q * shape.key_dim**-0.5, k, _by_head(v, shape.value_dim)


def _by_head(x: torch.Tensor, width: int) -> torch.Tensor:
    """[T, heads * width] -> [T, heads, width], a view also of a slice of columns."""
    return x.view(x.shape[0], -1, width)


def _split(x: torch.Tensor, *widths: int) -> list[torch.Tensor]:
    """The columns of x [T, sum of widths], side by side parts."""
    ends = list(itertools.accumulate(widths))
    return [x[:, end - width : end] for end, width in zip(ends, widths, strict=True)]


def feed_forward(part: FeedForward | ExpertFeedForward, x: torch.Tensor, config: Qwen35Config) -> torch.Tensor:
    """x [T, H] -> [T, H]: one gated feed-forward, or the chosen experts' and the shared one's, weighted."""
    if isinstance(part, FeedForward):
        gate, up = part.gate_up(x).chunk(2, dim=1)
        return part.down(F.silu(gate).mul_(up))
    assert config.experts is not None
    probabilities = part.router(x).float().softmax(dim=-1)
    weights, chosen = probabilities.topk(config.experts.num_experts_per_token, dim=-1)
    weights = (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)
    out = feed_forward(part.shared, x, config) * part.shared_gate(x).sigmoid()
    for index in sorted(set(chosen.flatten().tolist())):
        rows, places = (chosen == index).nonzero(as_tuple=True)
        answer = feed_forward(part.experts[index], x[rows], config)
        out.index_add_(0, rows, answer * weights[rows, places].unsqueeze(1))
    return out
