"""Reading a decoder's weights under their Hugging Face names, from either format."""

from __future__ import annotations

import torch

from pocketllm_torch.configs.decoder_config import DecoderConfig, Traits
from pocketllm_torch.layers.norm import RMSNorm
from pocketllm_torch.weights.part_reader import PartReader
from pocketllm_torch.weights.parts import AttentionWeights, FeedForwardWeights
from pocketllm_torch.weights.precision import Precision
from pocketllm_torch.weights.reader import WeightReader

_GGUF_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_GGUF_BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# The norm before the feed-forward; with sandwich norms Hugging Face gives its name to the one behind attention.
_GGUF_PLAIN = {"post_attention_layernorm": "ffn_norm"}
_GGUF_SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, *, sandwich_norms: bool = False) -> str:
    """The GGUF name of a Hugging Face tensor name, as in ``model.layers.3.mlp.up_proj.weight``."""
    stem, _, kind = name.rpartition(".")
    if stem in _GGUF_TOP:
        return f"{_GGUF_TOP[stem]}.{kind}"
    index, _, part = stem.removeprefix("model.layers.").partition(".")
    parts = _GGUF_BLOCK | (_GGUF_SANDWICH if sandwich_norms else _GGUF_PLAIN)
    return f"blk.{index}.{parts[part]}.{kind}"


class DecoderWeights(PartReader):
    """Reads one model's weights under their Hugging Face names."""

    def __init__(self, sizes: DecoderConfig, traits: Traits, weights: WeightReader, precision: Precision) -> None:
        super().__init__(weights, precision, eps=sizes.rms_norm_eps, zero_centred_norms=traits.zero_centred_norms)
        self._sizes = sizes
        self._traits = traits
        self._shapes = _shapes(sizes)

    def layer_norm(self, index: int, name: str) -> RMSNorm:
        return self.norm(f"model.layers.{index}.{name}.weight", self._sizes.hidden_size)

    def attention(self, index: int) -> AttentionWeights:
        q, k, v, output = (self.projection(index, f"self_attn.{name}_proj") for name in "qkvo")
        if not self._traits.head_norms:
            return AttentionWeights(self.joined(q, k, v), self.joined(output))
        query_norm, key_norm = (
            self.norm(f"model.layers.{index}.self_attn.{name}_norm.weight", self._sizes.head_dim) for name in "qk"
        )
        return AttentionWeights(self.joined(q, k, v), self.joined(output), query_norm, key_norm)

    def feed_forward(self, index: int) -> FeedForwardWeights:
        gate, up, down = (self.projection(index, f"mlp.{name}_proj") for name in ("gate", "up", "down"))
        return FeedForwardWeights(self.joined(gate, up), self.joined(down))

    def projection(self, index: int, name: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias of a layer's linear map, as in "mlp.up_proj".

        Rows that GGUF stores for interleaved rope, pair by pair, are put back.
        """
        full_name = f"model.layers.{index}.{name}"
        num_out, num_in, paired_heads = self._shapes[name]
        weight = self.weights.read(full_name + ".weight", (num_out, num_in))
        required = self._traits.qkv_bias and name.endswith(("q_proj", "k_proj", "v_proj"))
        has_bias = required or self.weights.has(full_name + ".bias")
        bias = self.weights.read(full_name + ".bias", (num_out,)) if has_bias else None
        if paired_heads and self._traits.paired_gguf_rows and self.is_gguf:
            weight = _rotate_half_rows(weight, paired_heads)
            bias = None if bias is None else _rotate_half_rows(bias, paired_heads)
        return weight, bias


def _shapes(sizes: DecoderConfig) -> dict[str, tuple[int, int, int]]:
    """Rows, columns, and the number of heads whose rows GGUF may store in pairs."""
    queries, keys_values = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    return {
        "self_attn.q_proj": (queries, hidden, sizes.num_heads),
        "self_attn.k_proj": (keys_values, hidden, sizes.num_kv_heads),
        "self_attn.v_proj": (keys_values, hidden, 0),
        "self_attn.o_proj": (hidden, queries, 0),
        "mlp.gate_proj": (inner, hidden, 0),
        "mlp.up_proj": (inner, hidden, 0),
        "mlp.down_proj": (hidden, inner, 0),
    }


def _rotate_half_rows(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows ordered (x0, x_{d/2}, x1, x_{d/2+1}, ...) per head -> (x0, x1, ..., x_{d/2}, ...)."""
    half = rows.shape[0] // num_heads // 2
    return rows.view(num_heads, half, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
