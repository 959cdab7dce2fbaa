"""Which model families there are. Importing this module imports no torch: a probe reads it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from pocketllm_torch.layers.attention import AttentionPlan
    from pocketllm_torch.layers.kv_cache import KVCache
    from pocketllm_torch.layers.state_cache import StateShape
    from pocketllm_torch.models.precision import Precision
    from pocketllm_torch.models.weights import WeightReader

FAMILIES: dict[str, tuple[str, str]] = {
    "llama": ("pocketllm_torch.models.llama", "LlamaModel"),
    "qwen2": ("pocketllm_torch.models.qwen2", "Qwen2Model"),
    "qwen3": ("pocketllm_torch.models.qwen3", "Qwen3Model"),
    "qwen3_5_text": ("pocketllm_torch.models.qwen3_5", "Qwen35Model"),
    "qwen3_5_moe_text": ("pocketllm_torch.models.qwen3_5", "Qwen35Model"),
    "gemma3_text": ("pocketllm_torch.models.gemma3", "Gemma3Model"),
}
"""``model_type`` -> module and class of the model."""


class ModelConfig(Protocol):
    """What the engine needs to know of a model's sizes."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def num_kv_layers(self) -> int:
        """Layers with keys and values in the cache."""

    @property
    def states(self) -> StateShape | None:
        """The recurrent state of the model's other layers, or None without any."""

    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def max_positions(self) -> int: ...


class Model(Protocol):
    """A loaded model; see :class:`pocketllm_torch.models.decoder.Decoder` for shapes."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, cache: KVCache
    ) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


class Family(Protocol):
    """The class side of a model family."""

    def load(
        self,
        config: Mapping[str, object],
        weights: WeightReader,
        precision: Precision,
        max_positions: int,
        progress: Callable[[float], None],
    ) -> Model: ...

    def sizes(self, config: Mapping[str, object]) -> ModelConfig: ...

    def gguf_name(self, name: str) -> str: ...


def find_family(model_type: str) -> Family:
    """The model class for ``model_type``.

    Raises:
        KeyError: an unknown family; :data:`FAMILIES` has the known ones.
    """
    module, name = FAMILIES[model_type]
    family: Family = getattr(importlib.import_module(module), name)
    return family
