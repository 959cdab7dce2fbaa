"""Gemma 3, text: sliding windows in most layers, norms on both sides of each part, a scaled embedding."""

from __future__ import annotations

from pocketllm_torch.models.decoder import Decoder
from pocketllm_torch.models.decoder_config import Traits


class Gemma3Model(Decoder):
    traits = Traits(
        head_norms=True,
        sandwich_norms=True,
        zero_centred_norms=True,
        gelu=True,
        scaled_embedding=True,
        sliding_windows=True,
    )
