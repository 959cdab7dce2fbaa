"""Random checkpoints of every decoder family but Llama, with the transformers models they were written from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 320
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_QWEN35: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
_GEMMA: dict[str, Any] = {
    "num_hidden_layers": 7,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 16,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma3_text": ("Gemma3ForCausalLM", "Gemma3TextConfig", _GEMMA),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", _QWEN35),
    "qwen3_5_moe_text": ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", _QWEN35 | _EXPERTS),
}
"""``model_type`` -> model class, configuration class and what it changes."""


@dataclass(frozen=True)
class TinyModel:
    """A checkpoint folder and the model it was written from."""

    path: Path
    model: Any

    def logits(self, ids: list[int]) -> torch.Tensor:
        """float32 [len(ids), VOCAB], by transformers, in one pass."""
        with torch.no_grad():
            logits: torch.Tensor = self.model(torch.tensor([ids]), use_cache=False).logits[0]
        return logits

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The next ``count`` tokens, without any cache."""
        tokens = list(ids)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(ids) :]


@cache
def build(model_type: str) -> Any:
    """The transformers model, every parameter made to matter."""
    model_class, config_class, changes = FAMILIES[model_type]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**(_BASE | changes))
    model: Any = getattr(transformers, model_class)(config).train(mode=False).float()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
            else:
                # Wider than the initialisation, so that the logits are not all alike.
                parameter.mul_(4.0)
    return model


def write_tiny(model_type: str, folder: Path) -> TinyModel:
    model = build(model_type)
    model.save_pretrained(folder)
    return TinyModel(folder, model)
