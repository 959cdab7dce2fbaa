"""Gemma 3, text: sliding windows in most layers, norms on both sides of each part, a scaled embedding."""

from __future__ import annotations

from pocketllm_torch.configs.decoder_config import Traits
from pocketllm_torch.models.plain_family import PlainFamily

FAMILY = PlainFamily(
    Traits(
        head_norms=True,
        sandwich_norms=True,
        zero_centred_norms=True,
        gelu=True,
        scaled_embedding=True,
        sliding_windows=True,
    )
)
