"""Rotary position embedding in the rotate-half form: dimension i is paired with i + head_dim / 2.

Pair i of a head at position p turns by the angle p * f_i, where f_i = theta^(-2i / head_dim), changed by the
checkpoint's scaling rule:

    (x_i, x_{i+d/2}) -> (x_i cos - x_{i+d/2} sin, x_{i+d/2} cos + x_i sin)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from pocketllm.errors import CheckpointError

SCALING_TYPES = ("default", "linear", "llama3")


def rope_settings(config: Mapping[str, object], *, windowed: bool = False) -> dict[str, object]:
    """Rope settings in one spelling, from ``rope_parameters`` or the older ``rope_theta`` and ``rope_scaling``.

    Args:
        windowed: those of the layers with a sliding window, where a family gives them their own (Gemma 3):
            ``rope_parameters`` by kind of layer, or the older ``rope_local_base_freq``.

    Returns a mapping with ``rope_theta``, ``rope_type`` and the rule's own numbers.
    """
    settings: dict[str, object] = {"rope_theta": config.get("rope_theta", 10000.0), "rope_type": "default"}
    kinds = config.get("rope_parameters")
    by_kind = kinds.get("sliding_attention" if windowed else "full_attention") if isinstance(kinds, Mapping) else None
    if isinstance(by_kind, Mapping):
        return settings | dict(by_kind)
    if windowed:
        return {"rope_theta": config.get("rope_local_base_freq", 10000.0), "rope_type": "default"}
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if isinstance(value, Mapping):
            settings.update(value)
            if "rope_type" not in value and "type" in value:
                settings["rope_type"] = value["type"]
    return settings


def inverse_frequencies(
    settings: Mapping[str, object], head_dim: int, divisors: torch.Tensor | None = None
) -> torch.Tensor:
    """The angle per position of each pair, float32 [head_dim / 2].

    Args:
        settings: from :func:`rope_settings`.
        divisors: a GGUF's ``rope_freqs.weight`` [head_dim / 2], which then is the whole scaling rule.

    Raises:
        CheckpointError: an unknown rule, or one that lacks a number.
    """
    theta = _number(settings, "rope_theta")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (theta**exponents)
    if divisors is not None:
        return frequencies / divisors.float()
    kind = settings["rope_type"]
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / _number(settings, "factor")
    if kind == "llama3":
        return _llama3(frequencies, settings)
    raise CheckpointError(
        f"rope_type = {kind!r} is not known; this backend has {', '.join(SCALING_TYPES)}.", param="rope_type"
    )


class RotaryTable:
    """cos and sin of every position, float32 [max_positions, 1, head_dim / 2] each."""

    def __init__(self, frequencies: torch.Tensor, max_positions: int, device: torch.device) -> None:
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies[None, :]
        self._cos = angles.cos().unsqueeze(1).to(device)
        self._sin = angles.sin().unsqueeze(1).to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [T, 1, head_dim / 2] of ``positions`` [T]."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate ``x`` [T, heads, head_dim] in place; half precision is computed in float32."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    if x.dtype is torch.float32:
        turned = first * cos
        turned.addcmul_(second, sin, value=-1.0)
        second.mul_(cos).addcmul_(first, sin)
        first.copy_(turned)
        return
    a, b = first.float(), second.float()
    first.copy_(a * cos - b * sin)
    second.copy_(b * cos + a * sin)


def _llama3(frequencies: torch.Tensor, settings: Mapping[str, object]) -> torch.Tensor:
    """Llama 3's rule: slow pairs are interpolated by ``factor``, fast ones kept, those between blended.

    With wavelength w = 2 pi / f, context c and s = (c / w - low) / (high - low): f' = (1 - s) f / factor + s f, with s
    held between 0 and 1.
    """
    factor = _number(settings, "factor")
    low, high = _number(settings, "low_freq_factor"), _number(settings, "high_freq_factor")
    context = _number(settings, "original_max_position_embeddings")
    wavelengths = 2 * math.pi / frequencies
    share = ((context / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share) * frequencies / factor + share * frequencies


def _number(settings: Mapping[str, object], name: str) -> float:
    value = settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise CheckpointError(f"{name} = {value!r} in the rope settings is not a positive number.", param=name)
    return float(value)
