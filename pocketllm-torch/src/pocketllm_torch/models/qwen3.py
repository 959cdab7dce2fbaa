"""Qwen3: Llama's block with queries and keys normalised per head."""

from __future__ import annotations

from pocketllm_torch.models.decoder import Decoder
from pocketllm_torch.models.decoder_config import Traits


class Qwen3Model(Decoder):
    traits = Traits(head_norms=True)
