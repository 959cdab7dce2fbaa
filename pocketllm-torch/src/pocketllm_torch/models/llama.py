"""Llama, Mistral-shaped checkpoints and SmolLM2: the plain layer."""

from __future__ import annotations

from pocketllm_torch.configs.decoder_config import Traits
from pocketllm_torch.models.plain_family import PlainFamily

FAMILY = PlainFamily(Traits(paired_gguf_rows=True))
