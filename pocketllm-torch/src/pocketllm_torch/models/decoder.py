"""Decoders of one shape: pre-norm blocks of grouped-query attention and a gated feed-forward.

    x = x + o(attention(norm(x)))        q, k rotated, k and v cached
    x = x + down(act(gate(norm(x))) * up(norm(x)))

:class:`~pocketllm_torch.models.decoder_config.Traits` says where a family departs from this. The q, k, v weights are
one matrix, and so are gate and up: fewer and larger products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F

from pocketllm_torch.layers.attention import paged_attention
from pocketllm_torch.layers.caches import Caches
from pocketllm_torch.layers.linear import Linear
from pocketllm_torch.layers.norm import RMSNorm
from pocketllm_torch.layers.rope import RotaryTable, inverse_frequencies, rope_settings, rotate_
from pocketllm_torch.layers.row_layout import RowLayout
from pocketllm_torch.models.decoder_config import DecoderConfig, Traits
from pocketllm_torch.models.decoder_weights import DecoderLayer, DecoderWeights, gguf_name
from pocketllm_torch.models.precision import Precision
from pocketllm_torch.models.weights import WeightReader

Progress = Callable[[float], None]


class Decoder:
    """The weights and the forward pass; one subclass per family sets ``traits``. Threads: one at a time."""

    traits: ClassVar[Traits] = Traits()

    def __init__(
        self,
        config: DecoderConfig,
        embedding: torch.Tensor,
        layers: list[DecoderLayer],
        norm: RMSNorm,
        head: Linear,
        rotaries: list[RotaryTable],
        dtype: torch.dtype,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self._embedding = embedding
        self._embedding_scale = float(torch.tensor(config.hidden_size**0.5, dtype=embedding.dtype))
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rotaries = rotaries

    @classmethod
    def gguf_name(cls, name: str) -> str:
        return gguf_name(name, sandwich_norms=cls.traits.sandwich_norms)

    @classmethod
    def sizes(cls, config: Mapping[str, object]) -> DecoderConfig:
        return DecoderConfig.from_mapping(config, cls.traits)

    @classmethod
    def load(
        cls,
        config: Mapping[str, object],
        weights: WeightReader,
        precision: Precision,
        max_positions: int,
        progress: Progress,
    ) -> Decoder:
        """Read every weight, in the storage form of ``precision``.

        Args:
            max_positions: how many positions of rotary angles to prepare.
            progress: called with the fraction done.
        """
        sizes = cls.sizes(config)
        load = DecoderWeights(sizes, cls.traits, weights, precision)
        table = load.matrix("model.embed_tokens.weight", sizes.vocab_size, sizes.hidden_size)
        layers = []
        for index in range(sizes.num_layers):
            layers.append(load.layer(index))
            progress((index + 1) / (sizes.num_layers + 1))
        tied = bool(config.get("tie_word_embeddings")) or not weights.has("lm_head.weight")
        head = table if tied else load.matrix("lm_head.weight", sizes.vocab_size, sizes.hidden_size)
        divisors = weights.read_extra("rope_freqs.weight", (sizes.head_dim // 2,))
        # One table for all layers with windows, and one for the others.
        tables = {
            windowed: RotaryTable(
                inverse_frequencies(rope_settings(config, windowed=windowed), sizes.head_dim, divisors),
                max_positions,
                precision.device,
            )
            for windowed in {window > 0 for window in sizes.windows}
        }
        model = cls(
            sizes,
            precision.table(table),
            layers,
            load.norm("model.norm.weight"),
            precision.linear(head, None, long_chunks=False),
            [tables[window > 0] for window in sizes.windows],
            precision.compute_dtype,
        )
        weights.check_all_read(ignore=("lm_head.weight",) if tied else ())
        progress(1.0)
        return model

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, layout: RowLayout, caches: Caches
    ) -> torch.Tensor:
        """token_ids [T], positions [T] -> the residual stream after the last layer [T, hidden_size]."""
        config = self.config
        heads, kv_heads, inner = config.num_heads, config.num_kv_heads, config.intermediate_size
        angles = {id(table): table.at(positions) for table in self._rotaries}
        x = F.embedding(token_ids, self._embedding).to(self.dtype)
        if self.traits.scaled_embedding:
            x.mul_(self._embedding_scale)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(layer.input_norm(x))
            rotated = qkv.view(-1, heads + 2 * kv_heads, config.head_dim)[:, : heads + kv_heads]
            if layer.query_norm is not None and layer.key_norm is not None:
                rotated[:, :heads].copy_(layer.query_norm(rotated[:, :heads]))
                rotated[:, heads:].copy_(layer.key_norm(rotated[:, heads:]))
            rotate_(rotated, *angles[id(self._rotaries[index])])
            attended = layer.output(
                paged_attention(qkv, caches.kv, index, layout, heads, config.attention_scale, config.windows[index])
            )
            x.add_(attended if layer.attended_norm is None else layer.attended_norm(attended))
            gate_up = layer.gate_up(layer.feed_forward_norm(x))
            gate, up = gate_up[:, :inner], gate_up[:, inner:]
            opened = F.gelu(gate, approximate="tanh") if self.traits.gelu else F.silu(gate)
            fed = layer.down(opened.mul_(up))
            x.add_(fed if layer.fed_norm is None else layer.fed_norm(fed))
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [R, hidden_size] from :meth:`forward` -> float32 logits [R, vocab_size]."""
        return self._head(self._norm(hidden)).float()
