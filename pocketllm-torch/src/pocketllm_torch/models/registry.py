"""Which model families there are. Importing this module imports no torch: a probe reads it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from pocketllm_torch.layers.attention import AttentionPlan
    from pocketllm_torch.layers.kv_cache import KVCache
    from pocketllm_torch.models.precision import Precision
    from pocketllm_torch.models.weights import WeightReader

FAMILIES: dict[str, tuple[str, str]] = {
    "llama": ("pocketllm_torch.models.llama", "LlamaModel"),
}
"""``model_type`` -> module and class of the model."""


class ModelConfig(Protocol):
    """What the engine needs to know of a model's sizes."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def max_positions(self) -> int: ...


class Model(Protocol):
    """A loaded model; see :class:`pocketllm_torch.models.llama.LlamaModel` for shapes."""

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
