"""Sizes of Qwen3.5 models: full attention in every n-th layer, Gated DeltaNet in the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pocketllm.errors import CheckpointError
from pocketllm_torch.configs.decoder_config import positive_size
from pocketllm_torch.layers.cache_spec import CacheSpec, KeyValueSpec, RecurrentSpec

_DEFAULT_INTERVAL = 4


@dataclass(frozen=True)
class DeltaNetShape:
    """Sizes of one Gated DeltaNet layer. ``num_channels``: queries, keys and values that enter the convolution."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel_size: int

    @property
    def num_channels(self) -> int:
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def cache(self) -> RecurrentSpec:
        """``recurrent`` is the state of each head; ``tail`` the newest inputs of the convolution, oldest first."""
        return RecurrentSpec(
            (
                ("recurrent", (self.num_value_heads, self.key_dim, self.value_dim)),
                ("tail", (self.kernel_size - 1, self.num_channels)),
            )
        )


@dataclass(frozen=True)
class Experts:
    """Sizes of a mixture of experts."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int


@dataclass(frozen=True)
class Qwen35Config:
    """From ``config.json`` names. ``is_linear`` has one entry per layer."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rms_norm_eps: float
    max_positions: int
    is_linear: tuple[bool, ...]
    delta_net: DeltaNetShape
    intermediate_size: int
    experts: Experts | None

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        full = KeyValueSpec(self.num_kv_heads, self.head_dim)
        return tuple(self.delta_net.cache if is_linear else full for is_linear in self.is_linear)

    @classmethod
    def from_mapping(cls, config: Mapping[str, object]) -> Qwen35Config:
        """Read and check the sizes.

        Raises:
            CheckpointError: a size is missing, not positive, or does not divide as it must.
        """

        def size(name: str, default: int | None = None) -> int:
            return positive_size(config, name, default)

        num_layers = size("num_hidden_layers")
        is_linear = _linear_layers(config, num_layers)
        heads, kv_heads, head_dim = size("num_attention_heads"), size("num_key_value_heads"), size("head_dim")
        key_heads, value_heads = size("linear_num_key_heads"), size("linear_num_value_heads")
        if heads % kv_heads or value_heads % key_heads:
            raise CheckpointError(
                f"num_attention_heads = {heads} must be a multiple of num_key_value_heads = {kv_heads}, and "
                f"linear_num_value_heads = {value_heads} of linear_num_key_heads = {key_heads}.",
                param="num_key_value_heads",
            )
        eps = config.get("rms_norm_eps", 1e-6)
        if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < 1:
            raise CheckpointError(f"rms_norm_eps = {eps!r} is not a small positive number.", param="rms_norm_eps")
        experts = None
        if config.get("num_experts"):
            experts = Experts(
                size("num_experts"),
                size("num_experts_per_tok"),
                size("moe_intermediate_size"),
                size("shared_expert_intermediate_size"),
            )
        return cls(
            vocab_size=size("vocab_size"),
            hidden_size=size("hidden_size"),
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rotary_dim=_rotary_dim(config, head_dim),
            rms_norm_eps=float(eps),
            max_positions=size("max_position_embeddings", 32768),
            is_linear=is_linear,
            delta_net=DeltaNetShape(
                num_key_heads=key_heads,
                num_value_heads=value_heads,
                key_dim=size("linear_key_head_dim"),
                value_dim=size("linear_value_head_dim"),
                kernel_size=size("linear_conv_kernel_dim"),
            ),
            intermediate_size=0 if experts else size("intermediate_size"),
            experts=experts,
        )


def _linear_layers(config: Mapping[str, object], num_layers: int) -> tuple[bool, ...]:
    kinds = config.get("layer_types")
    if kinds is None:
        every = positive_size(config, "full_attention_interval", _DEFAULT_INTERVAL)
        return tuple((index + 1) % every != 0 for index in range(num_layers))
    if not isinstance(kinds, list) or len(kinds) != num_layers or set(kinds) - {"linear_attention", "full_attention"}:
        raise CheckpointError(
            f"layer_types = {kinds!r} does not say linear_attention or full_attention for each of {num_layers} layers.",
            param="layer_types",
        )
    return tuple(kind == "linear_attention" for kind in kinds)


def _rotary_dim(config: Mapping[str, object], head_dim: int) -> int:
    """How many dimensions of a head are rotated."""
    rope = config.get("rope_parameters")
    factor = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
    factor = config.get("partial_rotary_factor", 0.25) if factor is None else factor
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 1:
        raise CheckpointError(
            f"partial_rotary_factor = {factor!r} is not a number above 0 and at most 1.", param="partial_rotary_factor"
        )
    return int(head_dim * factor) // 2 * 2
