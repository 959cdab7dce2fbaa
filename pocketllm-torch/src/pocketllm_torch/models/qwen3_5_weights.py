"""Reading Qwen3.5 weights under their Hugging Face names, from either format.

GGUF files order value heads by their place within a key head's group first ("tiled"); rows and columns are put back
here into Hugging Face's order, in which the value heads of one key head are neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pocketllm_torch.layers.linear import Linear
from pocketllm_torch.layers.norm import RMSNorm
from pocketllm_torch.models.precision import Precision
from pocketllm_torch.models.qwen3_5_config import Experts, Qwen35Config
from pocketllm_torch.models.weights import WeightReader

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


@dataclass(frozen=True)
class GatedAttention:
    """``qkvg``: queries, keys, values and the gates of the output, side by side."""

    qkvg: Linear
    query_norm: RMSNorm
    key_norm: RMSNorm
    output: Linear


@dataclass(frozen=True)
class DeltaNet:
    """``inputs``: convolution channels, z, alpha and beta, side by side. Vectors are float32."""

    inputs: Linear
    conv: torch.Tensor
    decay: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    output: Linear


@dataclass(frozen=True)
class FeedForward:
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class ExpertFeedForward:
    router: Linear
    experts: list[FeedForward]
    shared: FeedForward
    shared_gate: Linear


@dataclass(frozen=True)
class Qwen35Layer:
    input_norm: RMSNorm
    mixer: GatedAttention | DeltaNet
    feed_forward_norm: RMSNorm
    feed_forward: FeedForward | ExpertFeedForward


class Qwen35Weights:
    """Reads one model's weights."""

    def __init__(self, sizes: Qwen35Config, weights: WeightReader, precision: Precision) -> None:
        self._sizes = sizes
        self._weights = weights
        self._precision = precision
        self._is_gguf = weights.format == "gguf"

    def norm(self, name: str, size: int) -> RMSNorm:
        """A norm that multiplies by 1 + weight; GGUF files have the 1 added already."""
        weight = self._weights.read(name, (size,))
        if not self._is_gguf:
            weight = weight.float() + 1.0
        return RMSNorm(self._precision.vector(weight), self._sizes.rms_norm_eps)

    def layer(self, index: int) -> Qwen35Layer:
        prefix = f"model.layers.{index}."
        hidden = self._sizes.hidden_size
        linear = self._sizes.is_linear[index]
        return Qwen35Layer(
            input_norm=self.norm(prefix + "input_layernorm.weight", hidden),
            mixer=self._delta_net(prefix + "linear_attn.") if linear else self._attention(prefix + "self_attn."),
            feed_forward_norm=self.norm(prefix + "post_attention_layernorm.weight", hidden),
            feed_forward=self._feed_forward(prefix + "mlp."),
        )

    def _attention(self, prefix: str) -> GatedAttention:
        sizes = self._sizes
        heads, head_dim, hidden = sizes.num_heads, sizes.head_dim, sizes.hidden_size
        # Each head's rows: its queries, then its gates.
        both = self._weights.read(prefix + "q_proj.weight", (2 * heads * head_dim, hidden))
        queries, gates = both.view(heads, 2, head_dim, hidden).unbind(1)
        keys_values = (sizes.num_kv_heads * head_dim, hidden)
        parts = [
            queries.reshape(-1, hidden),
            self._weights.read(prefix + "k_proj.weight", keys_values),
            self._weights.read(prefix + "v_proj.weight", keys_values),
            gates.reshape(-1, hidden),
        ]
        return GatedAttention(
            qkvg=self._precision.linear(_stacked(parts), None),
            query_norm=self.norm(prefix + "q_norm.weight", head_dim),
            key_norm=self.norm(prefix + "k_norm.weight", head_dim),
            output=self._linear(prefix + "o_proj.weight", hidden, heads * head_dim),
        )

    def _delta_net(self, prefix: str) -> DeltaNet:
        shape, hidden = self._sizes.delta_net, self._sizes.hidden_size
        values, value_width = shape.num_value_heads, shape.num_value_heads * shape.value_dim
        keys = shape.num_channels - value_width
        qkv = self._weights.read(prefix + "in_proj_qkv.weight", (shape.num_channels, hidden))
        conv_shape = (shape.num_channels, shape.kernel_size)
        if self._is_gguf:
            conv = self._weights.read(prefix + "conv1d.weight", conv_shape)
        else:
            conv = self._weights.read(prefix + "conv1d.weight", (conv_shape[0], 1, conv_shape[1])).squeeze(1)
        decay = self._weights.read(prefix + "A_log", (values,)).float()
        inputs = [
            torch.cat([qkv[:keys], self._grouped(qkv[keys:])]),
            self._grouped(self._weights.read(prefix + "in_proj_z.weight", (value_width, hidden))),
            self._grouped(self._weights.read(prefix + "in_proj_a.weight", (values, hidden))),
            self._grouped(self._weights.read(prefix + "in_proj_b.weight", (values, hidden))),
        ]
        output = self._weights.read(prefix + "out_proj.weight", (hidden, value_width))
        device = self._precision.device
        return DeltaNet(
            inputs=self._precision.linear(_stacked(inputs), None),
            conv=torch.cat([conv[:keys], self._grouped(conv[keys:])]).float().to(device),
            # GGUF files hold -exp(A_log).
            decay=self._grouped(decay if self._is_gguf else -decay.exp()).to(device),
            dt_bias=self._grouped(self._weights.read(prefix + "dt_bias", (values,)).float()).to(device),
            norm=self._weights.read(prefix + "norm.weight", (shape.value_dim,)).float().to(device),
            output=self._precision.linear(self._grouped(output.T).T.contiguous(), None),
        )

    def _grouped(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of value heads, in Hugging Face's order."""
        if not self._is_gguf:
            return rows
        shape = self._sizes.delta_net
        per_key = shape.num_value_heads // shape.num_key_heads
        heads = rows.reshape(per_key, shape.num_key_heads, -1, *rows.shape[1:])
        return heads.transpose(0, 1).reshape(rows.shape)

    def _feed_forward(self, prefix: str) -> FeedForward | ExpertFeedForward:
        experts, hidden = self._sizes.experts, self._sizes.hidden_size
        if experts is None:
            return self._plain(prefix, self._sizes.intermediate_size)
        gate_name = prefix + "shared_expert_gate.weight"
        if self._is_gguf:
            gate = self._weights.read(gate_name, (hidden,)).view(1, hidden)
        else:
            gate = self._weights.read(gate_name, (1, hidden))
        return ExpertFeedForward(
            router=self._linear(prefix + "gate.weight", experts.num_experts, hidden),
            experts=self._experts(prefix + "experts.", experts),
            shared=self._plain(prefix + "shared_expert.", experts.shared_intermediate_size),
            shared_gate=self._precision.linear(gate, None),
        )

    def _plain(self, prefix: str, inner: int) -> FeedForward:
        hidden = self._sizes.hidden_size
        parts = [self._weights.read(f"{prefix}{kind}_proj.weight", (inner, hidden)) for kind in ("gate", "up")]
        return FeedForward(
            self._precision.linear(_stacked(parts), None), self._linear(prefix + "down_proj.weight", hidden, inner)
        )

    def _experts(self, prefix: str, sizes: Experts) -> list[FeedForward]:
        """Stacked in one tensor per kind (GGUF), with gate and up joined (Hugging Face), or a tensor per expert."""
        count, inner, hidden = sizes.num_experts, sizes.intermediate_size, self._sizes.hidden_size
        read, precision = self._weights.read, self._precision
        if self._is_gguf:
            gate, up = (read(f"{prefix}{kind}_proj", (count, inner, hidden)) for kind in ("gate", "up"))
            gate_up = torch.cat([gate, up], dim=1)
            down = read(prefix + "down_proj", (count, hidden, inner))
        elif self._weights.has(prefix + "gate_up_proj"):
            gate_up = read(prefix + "gate_up_proj", (count, 2 * inner, hidden))
            down = read(prefix + "down_proj", (count, hidden, inner))
        else:
            return [self._plain(f"{prefix}{index}.", inner) for index in range(count)]
        return [
            FeedForward(precision.linear(gate_up[index].contiguous(), None), precision.linear(down[index], None))
            for index in range(count)
        ]

    def _linear(self, name: str, num_out: int, num_in: int) -> Linear:
        return self._precision.linear(self._weights.read(name, (num_out, num_in)), None)


def _stacked(parts: list[torch.Tensor]) -> torch.Tensor:
    """Rows under each other; parts of different types become float32."""
    if len({part.dtype for part in parts}) > 1:
        parts = [part.float() for part in parts]
    return torch.cat(parts)
