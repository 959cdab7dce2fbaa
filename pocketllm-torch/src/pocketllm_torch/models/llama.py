"""The Llama family: pre-norm blocks of grouped-query attention and a gated SiLU feed-forward.

    x = x + o(attention(norm(x)))        q, k rotated, k and v cached
    x = x + down(silu(gate(norm(x))) * up(norm(x)))

The q, k, v weights are one matrix, and so are gate and up: fewer and larger products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pocketllm.errors import CheckpointError
from pocketllm_torch.layers.attention import AttentionPlan, paged_attention
from pocketllm_torch.layers.kv_cache import KVCache
from pocketllm_torch.layers.linear import Linear
from pocketllm_torch.layers.norm import RMSNorm
from pocketllm_torch.layers.rope import RotaryTable, inverse_frequencies, rope_settings, rotate_
from pocketllm_torch.models.precision import Precision, choose_precision
from pocketllm_torch.models.weights import WeightReader

Progress = Callable[[float], None]

_GGUF_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_GGUF_BLOCK = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor name, as in ``model.layers.3.mlp.up_proj.weight``."""
    stem, _, kind = name.rpartition(".")
    if stem in _GGUF_TOP:
        return f"{_GGUF_TOP[stem]}.{kind}"
    index, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{index}.{_GGUF_BLOCK[part]}.{kind}"


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of the model, from ``config.json`` names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_positions: int

    @classmethod
    def from_mapping(cls, config: Mapping[str, object]) -> LlamaConfig:
        """Read and check the sizes.

        Raises:
            CheckpointError: a size is missing, not positive, or does not divide as it must.
        """
        heads = _size(config, "num_attention_heads")
        hidden = _size(config, "hidden_size")
        kv_heads = _size(config, "num_key_value_heads", heads)
        eps = config.get("rms_norm_eps", 1e-6)
        if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < 1:
            raise CheckpointError(f"rms_norm_eps = {eps!r} is not a small positive number.", param="rms_norm_eps")
        sizes = cls(
            vocab_size=_size(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_size(config, "intermediate_size"),
            num_layers=_size(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=_size(config, "head_dim", max(1, hidden // heads)),
            rms_norm_eps=float(eps),
            max_positions=_size(config, "max_position_embeddings", 2048),
        )
        if heads % kv_heads or sizes.head_dim % 2:
            raise CheckpointError(
                f"num_attention_heads = {heads} is no multiple of num_key_value_heads = {kv_heads}, or head_dim = "
                f"{sizes.head_dim} is odd.",
                param="num_key_value_heads",
            )
        return sizes


@dataclass(frozen=True)
class LlamaLayer:
    input_norm: RMSNorm
    qkv: Linear
    output: Linear
    post_attention_norm: RMSNorm
    gate_up: Linear
    down: Linear


class LlamaModel:
    """The weights and the forward pass. Threads: one at a time."""

    def __init__(
        self,
        config: LlamaConfig,
        embedding: torch.Tensor,
        layers: list[LlamaLayer],
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
        self._scale = config.head_dim**-0.5

    gguf_name = staticmethod(gguf_name)
    sizes = LlamaConfig.from_mapping

    @classmethod
    def load(
        cls,
        config: Mapping[str, object],
        weights: WeightReader,
        precision: Precision,
        max_positions: int,
        progress: Progress,
    ) -> LlamaModel:
        """Read every weight, in the storage form of ``precision``.

        Args:
            max_positions: how many positions of rotary angles to prepare.
            progress: called with the fraction done.
        """
        sizes = LlamaConfig.from_mapping(config)
        load = _Loader(sizes, weights, precision)
        table = load.matrix("model.embed_tokens.weight", sizes.vocab_size, sizes.hidden_size)
        layers = []
        for index in range(sizes.num_layers):
            layers.append(load.layer(index))
            progress((index + 1) / (sizes.num_layers + 1))
        tied = bool(config.get("tie_word_embeddings")) or not weights.has("lm_head.weight")
        head = table if tied else load.matrix("lm_head.weight", sizes.vocab_size, sizes.hidden_size)
        divisors = weights.read_extra("rope_freqs.weight", (sizes.head_dim // 2,))
        frequencies = inverse_frequencies(rope_settings(config), sizes.head_dim, divisors)
        model = cls(
            sizes,
            precision.table(table),
            layers,
            RMSNorm(precision.vector(load.vector("model.norm.weight", sizes.hidden_size)), sizes.rms_norm_eps),
            precision.linear(head, None, long_chunks=False),
            RotaryTable(frequencies, max_positions, precision.device),
            precision.compute_dtype,
        )
        weights.check_all_read(ignore=("lm_head.weight",) if tied else ())
        progress(1.0)
        return model

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, cache: KVCache
    ) -> torch.Tensor:
        """token_ids [T], positions [T] -> the residual stream after the last layer [T, hidden_size]."""
        config = self.config
        num_rotated = config.num_heads + config.num_kv_heads
        cos, sin = self._rotary.at(positions)
        x = F.embedding(token_ids, self._embedding).to(self.dtype)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(layer.input_norm(x))
            rotate_(qkv.view(-1, num_rotated + config.num_kv_heads, config.head_dim)[:, :num_rotated], cos, sin)
            attended = paged_attention(qkv, cache, index, plan, config.num_heads, self._scale)
            x.add_(layer.output(attended))
            gate_up = layer.gate_up(layer.post_attention_norm(x))
            gate, up = gate_up[:, : config.intermediate_size], gate_up[:, config.intermediate_size :]
            x.add_(layer.down(F.silu(gate).mul_(up)))
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [R, hidden_size] from :meth:`forward` -> float32 logits [R, vocab_size]."""
        return self._head(self._norm(hidden)).float()


def read_state(sizes: LlamaConfig, weights: WeightReader) -> dict[str, torch.Tensor]:
    """Every weight under its Hugging Face name and in its layout, as a reference implementation wants them."""
    load = _Loader(sizes, weights, choose_precision("float32", torch.device("cpu")))
    state = {
        "model.embed_tokens.weight": load.matrix("model.embed_tokens.weight", sizes.vocab_size, sizes.hidden_size),
        "model.norm.weight": load.vector("model.norm.weight", sizes.hidden_size),
    }
    if weights.has("lm_head.weight"):
        state["lm_head.weight"] = load.matrix("lm_head.weight", sizes.vocab_size, sizes.hidden_size)
    for index in range(sizes.num_layers):
        prefix = f"model.layers.{index}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            state[f"{prefix}{norm}.weight"] = load.vector(f"{prefix}{norm}.weight", sizes.hidden_size)
        for name, (weight, bias) in load.projections(prefix).items():
            state[f"{prefix}{name}.weight"] = weight
            if bias is not None:
                state[f"{prefix}{name}.bias"] = bias
    return state


class _Loader:
    """Reads one model's weights under their Hugging Face names."""

    def __init__(self, sizes: LlamaConfig, weights: WeightReader, precision: Precision) -> None:
        self._sizes = sizes
        self._weights = weights
        self._precision = precision

    def matrix(self, name: str, num_out: int, num_in: int) -> torch.Tensor:
        return self._weights.read(name, (num_out, num_in))

    def vector(self, name: str, size: int) -> torch.Tensor:
        return self._weights.read(name, (size,))

    def layer(self, index: int) -> LlamaLayer:
        prefix = f"model.layers.{index}."
        parts = self.projections(prefix)
        precision = self._precision
        return LlamaLayer(
            input_norm=self._norm(prefix + "input_layernorm.weight"),
            qkv=_joined(precision, *(parts[f"self_attn.{name}_proj"] for name in "qkv")),
            output=_joined(precision, parts["self_attn.o_proj"]),
            post_attention_norm=self._norm(prefix + "post_attention_layernorm.weight"),
            gate_up=_joined(precision, parts["mlp.gate_proj"], parts["mlp.up_proj"]),
            down=_joined(precision, parts["mlp.down_proj"]),
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

    def _norm(self, name: str) -> RMSNorm:
        return RMSNorm(self._precision.vector(self.vector(name, self._sizes.hidden_size)), self._sizes.rms_norm_eps)

    def _projection(
        self, name: str, num_out: int, num_in: int, interleaved_heads: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias. GGUF stores the rows of q and k for interleaved rope, pair by pair; they are put back."""
        weight = self.matrix(name + ".weight", num_out, num_in)
        bias = self.vector(name + ".bias", num_out) if self._weights.has(name + ".bias") else None
        if interleaved_heads and self._weights.format == "gguf":
            weight = _rotate_half_rows(weight, interleaved_heads)
            bias = None if bias is None else _rotate_half_rows(bias, interleaved_heads)
        return weight, bias


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


def _size(config: Mapping[str, object], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{name} = {value!r} in the configuration is not a positive whole number.", param=name)
    return value
