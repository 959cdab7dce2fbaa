"""What tells the decoder families apart, and the sizes of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pocketllm.errors import CheckpointError
from pocketllm_torch.layers.cache_spec import CacheSpec, KeyValueSpec

_GEMMA_PATTERN = 6


@dataclass(frozen=True)
class Traits:
    """Where a family departs from Llama's layer.

    Attributes:
        head_norms: queries and keys are normalised per head before they are rotated.
        sandwich_norms: what attention and feed-forward return is normalised too, before it is added.
        zero_centred_norms: norms multiply by 1 + weight. GGUF files have the 1 added already.
        gelu: the gate goes through GELU (tanh form), not SiLU.
        scaled_embedding: token embeddings are multiplied by the square root of the hidden size.
        paired_gguf_rows: GGUF files hold q and k rows in the order of interleaved rope.
        sliding_windows: some layers see the newest positions only, with a rope base of their own.
        qkv_bias: q, k and v have a bias, also where the configuration does not say so.
    """

    head_norms: bool = False
    sandwich_norms: bool = False
    zero_centred_norms: bool = False
    gelu: bool = False
    scaled_embedding: bool = False
    paired_gguf_rows: bool = False
    sliding_windows: bool = False
    qkv_bias: bool = False


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a model, from ``config.json`` names. ``windows`` has one entry per layer; 0: all positions."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_positions: int
    attention_scale: float
    windows: tuple[int, ...]

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        return tuple(KeyValueSpec(self.num_kv_heads, self.head_dim, window) for window in self.windows)

    @classmethod
    def from_mapping(cls, config: Mapping[str, object], traits: Traits) -> DecoderConfig:
        """Read and check the sizes.

        Raises:
            CheckpointError: a size is missing, not positive, or does not divide as it must.
        """
        heads = positive_size(config, "num_attention_heads")
        hidden = positive_size(config, "hidden_size")
        kv_heads = positive_size(config, "num_key_value_heads", heads)
        eps = config.get("rms_norm_eps", 1e-6)
        if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < 1:
            raise CheckpointError(f"rms_norm_eps = {eps!r} is not a small positive number.", param="rms_norm_eps")
        head_dim = positive_size(config, "head_dim", max(1, hidden // heads))
        num_layers = positive_size(config, "num_hidden_layers")
        if heads % kv_heads or head_dim % 2:
            raise CheckpointError(
                f"num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}, or head_dim = "
                f"{head_dim} is odd.",
                param="num_key_value_heads",
            )
        scalar = config.get("query_pre_attn_scalar", head_dim)
        if isinstance(scalar, bool) or not isinstance(scalar, int | float) or not scalar > 0:
            raise CheckpointError(
                f"query_pre_attn_scalar = {scalar!r} is not a positive number.", param="query_pre_attn_scalar"
            )
        return cls(
            vocab_size=positive_size(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=positive_size(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=float(eps),
            max_positions=positive_size(config, "max_position_embeddings", 2048),
            attention_scale=float(scalar) ** -0.5,
            windows=_windows(config, num_layers) if traits.sliding_windows else (0,) * num_layers,
        )


def _windows(config: Mapping[str, object], num_layers: int) -> tuple[int, ...]:
    """From ``layer_types``, or the older rule that every n-th layer sees everything."""
    kinds = config.get("layer_types")
    if kinds is None:
        every = positive_size(
            config, "sliding_window_pattern", positive_size(config, "_sliding_window_pattern", _GEMMA_PATTERN)
        )
        kinds = ["sliding_attention" if (index + 1) % every else "full_attention" for index in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers or set(kinds) - {"sliding_attention", "full_attention"}:
        raise CheckpointError(
            f"layer_types = {kinds!r} must say sliding_attention or full_attention for each of {num_layers} layers.",
            param="layer_types",
        )
    if "sliding_attention" not in kinds:
        return (0,) * num_layers
    window = positive_size(config, "sliding_window")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def positive_size(config: Mapping[str, object], name: str, default: int | None = None) -> int:
    """A positive whole number of the configuration; CheckpointError for anything else, or without a default."""
    value = config.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{name} = {value!r} in the configuration is not a positive whole number.", param=name)
    return value
