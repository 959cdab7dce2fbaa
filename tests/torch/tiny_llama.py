"""Random Llama checkpoints small enough to compute in no time, written with transformers, the reference."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 320
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
}


@dataclass(frozen=True)
class TinyLlama:
    """A checkpoint folder and the model it was written from."""

    path: Path
    model: LlamaForCausalLM

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


def write_tiny_llama(
    folder: Path, *, max_shard_size: str = "5GB", legacy_rope: bool = False, **changes: Any
) -> TinyLlama:
    """Write a checkpoint; ``changes`` are configuration values. Zero-initialised parameters are made to matter."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**BASE, **changes})).train(mode=False).float()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
            else:
                # Wider than the initialisation, so that the logits are not all alike.
                parameter.mul_(4.0)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    if legacy_rope:
        _use_legacy_rope_names(folder / "config.json")
    return TinyLlama(folder, model)


def random_ids(count: int, seed: int) -> list[int]:
    ids: list[int] = torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


def _use_legacy_rope_names(file: Path) -> None:
    config = json.loads(file.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    file.write_text(json.dumps(config))
