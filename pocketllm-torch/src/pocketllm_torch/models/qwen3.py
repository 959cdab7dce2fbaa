"""Qwen3: Llama's layer with queries and keys normalised per head."""

from __future__ import annotations

from pocketllm_torch.configs.decoder_config import Traits
from pocketllm_torch.models.plain_family import PlainFamily

FAMILY = PlainFamily(Traits(head_norms=True))
