"""Families of one shape: layers of attention and a gated feed-forward, told apart by a few traits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F

from pocketllm_torch.configs.decoder_config import DecoderConfig, Traits
from pocketllm_torch.layers.cache_spec import index_among_its_kind
from pocketllm_torch.layers.rope import RotaryTable, inverse_frequencies, rope_settings
from pocketllm_torch.models.attention_mixer import AttentionMixer, AttentionShape
from pocketllm_torch.models.decoder import Decoder, load_decoder
from pocketllm_torch.models.feed_forward import GatedFeedForward, gelu_tanh
from pocketllm_torch.models.layer import Layer, PreNormLayer, SandwichLayer
from pocketllm_torch.models.registry import Progress
from pocketllm_torch.weights.decoder_weights import DecoderWeights, gguf_name
from pocketllm_torch.weights.precision import Precision
from pocketllm_torch.weights.reader import WeightReader


@dataclass(frozen=True)
class PlainFamily:
    """See :class:`~pocketllm_torch.models.registry.Family`."""

    traits: Traits

    def sizes(self, config: Mapping[str, object]) -> DecoderConfig:
        return DecoderConfig.from_mapping(config, self.traits)

    def gguf_name(self, name: str) -> str:
        return gguf_name(name, sandwich_norms=self.traits.sandwich_norms)

    def load(
        self,
        config: Mapping[str, object],
        weights: WeightReader,
        precision: Precision,
        max_positions: int,
        progress: Progress,
    ) -> Decoder:
        sizes = self.sizes(config)
        reader = DecoderWeights(sizes, self.traits, weights, precision)
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

        def make_layer(index: int) -> Layer:
            return self._layer(sizes, reader, index, tables[sizes.windows[index] > 0])

        return load_decoder(
            config,
            sizes,
            reader,
            list(tables.values()),
            make_layer,
            progress,
            scaled_embedding=self.traits.scaled_embedding,
        )

    def _layer(self, sizes: DecoderConfig, reader: DecoderWeights, index: int, rotary: RotaryTable) -> Layer:
        shape = AttentionShape(
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            rotary_dim=sizes.head_dim,
            scale=sizes.attention_scale,
            window=sizes.windows[index],
            cache_layer=index_among_its_kind(sizes.caches, index),
        )
        mixer = AttentionMixer(reader.attention(index), shape, rotary)
        feed_forward = GatedFeedForward(reader.feed_forward(index), gelu_tanh if self.traits.gelu else F.silu)
        if not self.traits.sandwich_norms:
            return PreNormLayer(
                input_norm=reader.layer_norm(index, "input_layernorm"),
                mixer=mixer,
                feed_forward_norm=reader.layer_norm(index, "post_attention_layernorm"),
                feed_forward=feed_forward,
            )
        return SandwichLayer(
            input_norm=reader.layer_norm(index, "input_layernorm"),
            mixer=mixer,
            mixed_norm=reader.layer_norm(index, "post_attention_layernorm"),
            feed_forward_norm=reader.layer_norm(index, "pre_feedforward_layernorm"),
            feed_forward=feed_forward,
            fed_norm=reader.layer_norm(index, "post_feedforward_layernorm"),
        )
