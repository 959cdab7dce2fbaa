"""Qwen3.5, dense and mixture of experts: Gated DeltaNet layers with gated attention in every n-th."""

from __future__ import annotations

from collections.abc import Mapping

from pocketllm_torch.configs.qwen3_5_config import Qwen35Config
from pocketllm_torch.layers.cache_spec import index_among_its_kind
from pocketllm_torch.layers.rope import RotaryTable, inverse_frequencies, rope_settings
from pocketllm_torch.models.attention_mixer import AttentionMixer, AttentionShape
from pocketllm_torch.models.decoder import Decoder, load_decoder
from pocketllm_torch.models.delta_net_mixer import DeltaNetMixer
from pocketllm_torch.models.feed_forward import ExpertFeedForward, GatedFeedForward
from pocketllm_torch.models.layer import FeedForward, Mixer, PreNormLayer
from pocketllm_torch.models.registry import Progress
from pocketllm_torch.weights.precision import Precision
from pocketllm_torch.weights.qwen3_5_weights import Qwen35Weights, gguf_name
from pocketllm_torch.weights.reader import WeightReader


class Qwen35Family:
    """See :class:`~pocketllm_torch.models.registry.Family`."""

    def sizes(self, config: Mapping[str, object]) -> Qwen35Config:
        return Qwen35Config.from_mapping(config)

    def gguf_name(self, name: str) -> str:
        return gguf_name(name)

    def load(
        self,
        config: Mapping[str, object],
        weights: WeightReader,
        precision: Precision,
        max_positions: int,
        progress: Progress,
    ) -> Decoder:
        sizes = self.sizes(config)
        reader = Qwen35Weights(sizes, weights, precision)
        frequencies = inverse_frequencies(rope_settings(config), sizes.rotary_dim)
        rotary = RotaryTable(frequencies, max_positions, precision.device)

        def make_layer(index: int) -> PreNormLayer:
            return PreNormLayer(
                input_norm=reader.layer_norm(index, "input_layernorm"),
                mixer=_mixer(sizes, reader, index, rotary),
                feed_forward_norm=reader.layer_norm(index, "post_attention_layernorm"),
                feed_forward=_feed_forward(sizes, reader, index),
            )

        return load_decoder(config, sizes, reader, [rotary], make_layer, progress)


def _mixer(sizes: Qwen35Config, reader: Qwen35Weights, index: int, rotary: RotaryTable) -> Mixer:
    cache_layer = index_among_its_kind(sizes.caches, index)
    if sizes.is_linear[index]:
        return DeltaNetMixer(reader.delta_net(index), sizes.delta_net, eps=sizes.rms_norm_eps, state_layer=cache_layer)
    shape = AttentionShape(
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        rotary_dim=sizes.rotary_dim,
        scale=sizes.head_dim**-0.5,
        window=0,
        cache_layer=cache_layer,
    )
    return AttentionMixer(reader.attention(index), shape, rotary)


def _feed_forward(sizes: Qwen35Config, reader: Qwen35Weights, index: int) -> FeedForward:
    if sizes.experts is None:
        return GatedFeedForward(reader.feed_forward(index))
    return ExpertFeedForward(reader.experts(index, sizes.experts), sizes.experts.num_experts_per_token)


FAMILY = Qwen35Family()
