"""Qwen2 and Qwen2.5: Llama's block with a bias on q, k and v."""

from __future__ import annotations

from pocketllm_torch.models.decoder import Decoder
from pocketllm_torch.models.decoder_config import Traits


class Qwen2Model(Decoder):
    traits = Traits(qkv_bias=True)
