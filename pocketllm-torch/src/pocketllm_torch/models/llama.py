"""Llama, Mistral-shaped checkpoints and SmolLM2: the plain block."""

from __future__ import annotations

from pocketllm_torch.models.decoder import Decoder
from pocketllm_torch.models.decoder_config import Traits


class LlamaModel(Decoder):
    traits = Traits(paired_gguf_rows=True)
