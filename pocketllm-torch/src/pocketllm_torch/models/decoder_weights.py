"""Reading a decoder's weights under their Hugging Face names, from either format."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pocketllm.errors import CheckpointError
from pocketllm_torch.layers.linear import Linear
from pocketllm_torch.layers.norm import RMSNorm
from pocketllm_torch.models.decoder_config import DecoderConfig, Traits
from pocketllm_torch.models.precision import Precision, choose_precision
from pocketllm_torch.models.weights import WeightReader

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


@dataclass(frozen=True)
class DecoderLayer:
    """One block. Norms that the family does not have are None."""

    input_norm: RMSNorm
    qkv: Linear
    query_norm: RMSNorm | None
    key_norm: RMSNorm | None
    output: Linear
    attended_norm: RMSNorm | None
    feed_forward_norm: RMSNorm
    gate_up: Linear
    down: Linear
    fed_norm: RMSNorm | None


class DecoderWeights:
    """Reads one model's weights under their Hugging Face names."""

    def __init__(self, sizes: DecoderConfig, traits: Traits, weights: WeightReader, precision: Precision) -> None:
        self._sizes = sizes
        self._traits = traits
        self._weights = weights
        self._precision = precision

    def matrix(self, name: str, num_out: int, num_in: int) -> torch.Tensor:
        return self._weights.read(name, (num_out, num_in))

    def norm_weight(self, name: str, size: int) -> torch.Tensor:
        """As the norm multiplies by it."""
        weight = self._weights.read(name, (size,))
        if self._traits.zero_centred_norms and self._weights.format != "gguf":
            return weight.float() + 1.0
        return weight

    def norm(self, name: str, size: int | None = None) -> RMSNorm:
        weight = self.norm_weight(name, size or self._sizes.hidden_size)
        return RMSNorm(self._precision.vector(weight), self._sizes.rms_norm_eps)

    def layer(self, index: int) -> DecoderLayer:
        prefix = f"model.layers.{index}."
        parts = self.projections(prefix)
        precision, traits, sizes = self._precision, self._traits, self._sizes
        behind = "post_attention_layernorm.weight"
        return DecoderLayer(
            input_norm=self.norm(prefix + "input_layernorm.weight"),
            qkv=_joined(precision, *(parts[f"self_attn.{name}_proj"] for name in "qkv")),
            query_norm=self.norm(prefix + "self_attn.q_norm.weight", sizes.head_dim) if traits.head_norms else None,
            key_norm=self.norm(prefix + "self_attn.k_norm.weight", sizes.head_dim) if traits.head_norms else None,
            output=_joined(precision, parts["self_attn.o_proj"]),
            attended_norm=self.norm(prefix + behind) if traits.sandwich_norms else None,
            feed_forward_norm=self.norm(
                prefix + ("pre_feedforward_layernorm.weight" if traits.sandwich_norms else behind)
            ),
            gate_up=_joined(precision, parts["mlp.gate_proj"], parts["mlp.up_proj"]),
            down=_joined(precision, parts["mlp.down_proj"]),
            fed_norm=self.norm(prefix + "post_feedforward_layernorm.weight") if traits.sandwich_norms else None,
        )

    def projections(self, prefix: str) -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
        """Weight and bias of each linear map of a layer."""
        sizes = self._sizes
        queries, keys_values = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        hidden, inner = sizes.hidden_size, sizes.intermediate_size
        shapes = {
            "self_attn.q_proj": (queries, hidden, sizes.num_heads),
            "self_attn.k_proj": (keys_values, hidden, sizes.num_kv_heads),
            "self_attn.v_proj": (keys_values, hidden, 0),
            "self_attn.o_proj": (hidden, queries, 0),
            "mlp.gate_proj": (inner, hidden, 0),
            "mlp.up_proj": (inner, hidden, 0),
            "mlp.down_proj": (hidden, inner, 0),
        }
        return {name: self._projection(prefix + name, *shape) for name, shape in shapes.items()}

    def _projection(
        self, name: str, num_out: int, num_in: int, paired_heads: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias. Rows that GGUF stores for interleaved rope, pair by pair, are put back."""
        weight = self.matrix(name + ".weight", num_out, num_in)
        required = self._traits.qkv_bias and name.endswith(("q_proj", "k_proj", "v_proj"))
        has_bias = required or self._weights.has(name + ".bias")
        bias = self._weights.read(name + ".bias", (num_out,)) if has_bias else None
        if paired_heads and self._traits.paired_gguf_rows and self._weights.format == "gguf":
            weight = _rotate_half_rows(weight, paired_heads)
            bias = None if bias is None else _rotate_half_rows(bias, paired_heads)
        return weight, bias


def read_state(sizes: DecoderConfig, traits: Traits, weights: WeightReader) -> dict[str, torch.Tensor]:
    """Every weight under its Hugging Face name and in its layout, as a reference implementation wants them.

    Raises:
        CheckpointError: the family has norms that a state dictionary of the reference would hold otherwise.
    """
    if traits.zero_centred_norms or traits.head_norms:
        raise CheckpointError("read_state is for families with Llama's norms.")
    load = DecoderWeights(sizes, traits, weights, choose_precision("float32", torch.device("cpu")))
    state = {
        "model.embed_tokens.weight": load.matrix("model.embed_tokens.weight", sizes.vocab_size, sizes.hidden_size),
        "model.norm.weight": load.norm_weight("model.norm.weight", sizes.hidden_size),
    }
    if weights.has("lm_head.weight"):
        state["lm_head.weight"] = load.matrix("lm_head.weight", sizes.vocab_size, sizes.hidden_size)
    for index in range(sizes.num_layers):
        prefix = f"model.layers.{index}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            state[f"{prefix}{norm}.weight"] = load.norm_weight(f"{prefix}{norm}.weight", sizes.hidden_size)
        for name, (weight, bias) in load.projections(prefix).items():
            state[f"{prefix}{name}.weight"] = weight
            if bias is not None:
                state[f"{prefix}{name}.bias"] = bias
    return state


def _joined(precision: Precision, *parts: tuple[torch.Tensor, torch.Tensor | None]) -> Linear:
    """One linear layer whose output is the parts' outputs side by side."""
    weight = torch.cat([weight for weight, _ in parts]) if len(parts) > 1 else parts[0][0]
    bias = None
    if any(bias is not None for _, bias in parts):
        bias = torch.cat([bias if bias is not None else weight.new_zeros(len(weight)) for weight, bias in parts])
    return precision.linear(weight, bias)


def _rotate_half_rows(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows ordered (x0, x_{d/2}, x1, x_{d/2+1}, ...) per head -> (x0, x1, ..., x_{d/2}, ...)."""
    half = rows.shape[0] // num_heads // 2
    return rows.view(num_heads, half, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
