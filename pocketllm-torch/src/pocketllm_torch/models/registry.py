"""Which model families there are. Importing this module imports no torch: a probe reads it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from pocketllm_torch.layers.cache_spec import CacheSpec
    from pocketllm_torch.layers.caches import Caches
    from pocketllm_torch.layers.row_layout import RowLayout
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
    def caches(self) -> Sequence[CacheSpec]:
        """What each layer keeps of a sequence."""

    @property
    def max_positions(self) -> int: ...


class Model(Protocol):
    """A loaded model; see :class:`pocketllm_torch.models.decoder.Decoder` for shapes."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, layout: RowLayout, caches: Caches
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
