"""Reading Qwen3.5 weights under their Hugging Face names, from either format.

GGUF files order value heads by their place within a key head's group first ("tiled"); rows and columns are put back
here into Hugging Face's order, in which the value heads of one key head are neighbours.
"""

from __future__ import annotations

import torch

from pocketllm_torch.configs.qwen3_5_config import Experts, Qwen35Config
from pocketllm_torch.layers.norm import RMSNorm
from pocketllm_torch.weights.part_reader import PartReader
from pocketllm_torch.weights.parts import AttentionWeights, DeltaNetWeights, ExpertWeights, FeedForwardWeights
from pocketllm_torch.weights.precision import Precision
from pocketllm_torch.weights.reader import WeightReader

_GGUF_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_GGUF_BLOCK = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.experts.gate_proj": "ffn_gate_exps.weight",
    "mlp.experts.up_proj": "ffn_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor name; of the experts, of all of one kind together."""
    stem, _, kind = name.rpartition(".")
    if stem in _GGUF_TOP:
        return f"{_GGUF_TOP[stem]}.{kind}"
    index, _, part = name.removeprefix("model.layers.").partition(".")
    # A name that only Hugging Face files have is looked for under itself, and not found.
    return f"blk.{index}.{_GGUF_BLOCK.get(part, part)}"


class Qwen35Weights(PartReader):
    """Reads one model's weights."""

    def __init__(self, sizes: Qwen35Config, weights: WeightReader, precision: Precision) -> None:
        super().__init__(weights, precision, eps=sizes.rms_norm_eps, zero_centred_norms=True)
        self._sizes = sizes

    def layer_norm(self, index: int, name: str) -> RMSNorm:
        return self.norm(f"model.layers.{index}.{name}.weight", self._sizes.hidden_size)

    def attention(self, index: int) -> AttentionWeights:
        """The gates of the output are behind the values."""
        prefix = f"model.layers.{index}.self_attn."
        sizes = self._sizes
        heads, head_dim, hidden = sizes.num_heads, sizes.head_dim, sizes.hidden_size
        # Each head's rows: its queries, then its gates.
        both = self.weights.read(prefix + "q_proj.weight", (2 * heads * head_dim, hidden))
        queries, gates = both.view(heads, 2, head_dim, hidden).unbind(1)
        keys_values = (sizes.num_kv_heads * head_dim, hidden)
        parts = [
            queries.reshape(-1, hidden),
            self.weights.read(prefix + "k_proj.weight", keys_values),
            self.weights.read(prefix + "v_proj.weight", keys_values),
            gates.reshape(-1, hidden),
        ]
        return AttentionWeights(
            qkv=self.joined(*((part, None) for part in parts)),
            query_norm=self.norm(prefix + "q_norm.weight", head_dim),
            key_norm=self.norm(prefix + "k_norm.weight", head_dim),
            output=self.linear(prefix + "o_proj.weight", hidden, heads * head_dim),
        )

    def delta_net(self, index: int) -> DeltaNetWeights:
        prefix = f"model.layers.{index}.linear_attn."
        shape, hidden = self._sizes.delta_net, self._sizes.hidden_size
        values, value_width = shape.num_value_heads, shape.num_value_heads * shape.value_dim
        keys = shape.num_channels - value_width
        qkv = self.weights.read(prefix + "in_proj_qkv.weight", (shape.num_channels, hidden))
        conv_shape = (shape.num_channels, shape.kernel_size)
        if self.is_gguf:
            conv = self.weights.read(prefix + "conv1d.weight", conv_shape)
        else:
            conv = self.weights.read(prefix + "conv1d.weight", (conv_shape[0], 1, conv_shape[1])).squeeze(1)
        decay = self.weights.read(prefix + "A_log", (values,)).float()
        inputs = [
            torch.cat([qkv[:keys], self._grouped(qkv[keys:])]),
            self._grouped(self.weights.read(prefix + "in_proj_z.weight", (value_width, hidden))),
            self._grouped(self.weights.read(prefix + "in_proj_a.weight", (values, hidden))),
            self._grouped(self.weights.read(prefix + "in_proj_b.weight", (values, hidden))),
        ]
        output = self.weights.read(prefix + "out_proj.weight", (hidden, value_width))
        device = self.precision.device
        return DeltaNetWeights(
            inputs=self.joined(*((part, None) for part in inputs)),
            conv=torch.cat([conv[:keys], self._grouped(conv[keys:])]).float().to(device),
            # GGUF files hold -exp(A_log).
            decay=self._grouped(decay if self.is_gguf else -decay.exp()).to(device),
            dt_bias=self._grouped(self.weights.read(prefix + "dt_bias", (values,)).float()).to(device),
            norm=self.weights.read(prefix + "norm.weight", (shape.value_dim,)).float().to(device),
            output=self.precision.linear(self._grouped(output.T).T.contiguous(), None),
        )

    def _grouped(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of value heads, in Hugging Face's order."""
        if not self.is_gguf:
            return rows
        shape = self._sizes.delta_net
        per_key = shape.num_value_heads // shape.num_key_heads
        heads = rows.reshape(per_key, shape.num_key_heads, -1, *rows.shape[1:])
        return heads.transpose(0, 1).reshape(rows.shape)

    def feed_forward(self, index: int) -> FeedForwardWeights:
        return self._gated(f"model.layers.{index}.mlp.", self._sizes.intermediate_size)

    def experts(self, index: int, sizes: Experts) -> ExpertWeights:
        prefix, hidden = f"model.layers.{index}.mlp.", self._sizes.hidden_size
        gate_name = prefix + "shared_expert_gate.weight"
        gate_shape = (hidden,) if self.is_gguf else (1, hidden)
        return ExpertWeights(
            router=self.linear(prefix + "gate.weight", sizes.num_experts, hidden),
            experts=self._routed(prefix + "experts.", sizes),
            shared=self._gated(prefix + "shared_expert.", sizes.shared_intermediate_size),
            shared_gate=self.precision.linear(self.weights.read(gate_name, gate_shape).view(1, hidden), None),
        )

    def _gated(self, prefix: str, inner: int) -> FeedForwardWeights:
        hidden = self._sizes.hidden_size
        parts = [self.weights.read(f"{prefix}{kind}_proj.weight", (inner, hidden)) for kind in ("gate", "up")]
        return FeedForwardWeights(
            self.joined(*((part, None) for part in parts)), self.linear(prefix + "down_proj.weight", hidden, inner)
        )

    def _routed(self, prefix: str, sizes: Experts) -> list[FeedForwardWeights]:
        """Stacked in one tensor per kind (GGUF), with gate and up joined (Hugging Face), or a tensor per expert."""
        count, inner, hidden = sizes.num_experts, sizes.intermediate_size, self._sizes.hidden_size
        read, precision = self.weights.read, self.precision
        if self.is_gguf:
            gate, up = (read(f"{prefix}{kind}_proj", (count, inner, hidden)) for kind in ("gate", "up"))
            gate_up = torch.cat([gate, up], dim=1)
            down = read(prefix + "down_proj", (count, hidden, inner))
        elif self.weights.has(prefix + "gate_up_proj"):
            gate_up = read(prefix + "gate_up_proj", (count, 2 * inner, hidden))
            down = read(prefix + "down_proj", (count, hidden, inner))
        else:
            return [self._gated(f"{prefix}{index}.", inner) for index in range(count)]
        return [
            FeedForwardWeights(precision.linear(gate_up[index].contiguous(), None), precision.linear(down[index], None))
            for index in range(count)
        ]
