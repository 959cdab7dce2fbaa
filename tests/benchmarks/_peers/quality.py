"""How far a run of a quantised model is from the float32 run of the same, dequantised weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NUM_TOKENS = 400


def fixed_text() -> str:
    return (Path(__file__).parent / "english.txt").read_text()


def reference_logits(model: Path, prompt: list[int]) -> Array:
    """[len(prompt), vocab] from transformers, weights dequantised to float32."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=torch.float32
    )
    with torch.inference_mode():
        logits: Array = loaded(torch.tensor([prompt])).logits[0].float().numpy()
    return logits


def log_softmax(logits: Array) -> Array:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalised


def divergence(reference: Array, logits: Array) -> tuple[float, float]:
    """Mean KL(reference || logits) per position, and how often both agree on the likeliest token."""
    # A vocabulary may be padded in one and not in the other.
    size = min(reference.shape[1], logits.shape[1])
    kl = np.empty(len(reference))
    agrees = np.empty(len(reference))
    # Row by row: a large vocabulary in float64, several times over, takes gigabytes.
    for row, (here, there) in enumerate(zip(reference, logits, strict=True)):
        expected, found = log_softmax(here[:size]), log_softmax(there[:size])
        kl[row] = (np.exp(expected) * (expected - found)).sum()
        agrees[row] = expected.argmax() == found.argmax()
    return float(kl.mean()), float(agrees.mean())
