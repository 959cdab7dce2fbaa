"""Qwen2 and Qwen2.5: Llama's layer with a bias on q, k and v."""

from __future__ import annotations

from pocketllm_torch.configs.decoder_config import Traits
from pocketllm_torch.models.plain_family import PlainFamily

FAMILY = PlainFamily(Traits(qkv_bias=True))
