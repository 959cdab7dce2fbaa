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
    from pocketllm_torch.weights.precision import Precision
    from pocketllm_torch.weights.reader import WeightReader

Progress = Callable[[float], None]
"""Called with the fraction done."""

FAMILIES: dict[str, str] = {
    "llama": "pocketllm_torch.models.llama",
    "qwen2": "pocketllm_torch.models.qwen2",
    "qwen3": "pocketllm_torch.models.qwen3",
    "qwen3_5_text": "pocketllm_torch.models.qwen3_5",
    "qwen3_5_moe_text": "pocketllm_torch.models.qwen3_5",
    "gemma3_text": "pocketllm_torch.models.gemma3",
}
"""``model_type`` -> the module whose ``FAMILY`` it is."""


class ModelConfig(Protocol):
    """What the engine needs to know of a model's sizes."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
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
    """What tells a family of models from others: its configuration, its names of tensors, its layers."""

    def sizes(self, config: Mapping[str, object]) -> ModelConfig:
        """Read and check a configuration. Raises CheckpointError."""
        ...

    def gguf_name(self, name: str) -> str:
        """The name in a GGUF file of a Hugging Face tensor name."""
        ...

    def load(
        self,
        config: Mapping[str, object],
        weights: WeightReader,
        precision: Precision,
        max_positions: int,
        progress: Progress,
    ) -> Model:
        """Read every weight, in the storage form of ``precision``.

        Args:
            max_positions: how many positions of rotary angles to prepare.
        """
        ...


def find_family(model_type: str) -> Family:
    """The family of ``model_type``.

    Raises:
        KeyError: an unknown family; :data:`FAMILIES` has the known ones.
    """
    family: Family = importlib.import_module(FAMILIES[model_type]).FAMILY
    return family
