"""In which dtype a CPU multiplies the weights with chunks of many tokens, when float16 storage is the default.

FBGEMM's float16 kernels are made for few rows. For many, a float32 product is somewhat faster on every CPU, and a
bfloat16 product much faster on those that have units for it. A second copy of the weights is worth it while the model
is small beside the machine's memory.
"""

from __future__ import annotations

import os
import time

import torch

from pocketllm_torch.layers.linear import DenseLinear, Linear
from pocketllm_torch.layers.linear_forms import bfloat16_form, missing_packed_bfloat16

_MEMORY_SHARE = 0.125
# CPUs with bfloat16 units are two to eight times faster in it, others slower: nothing lies near this.
_WORTHWHILE_SPEEDUP = 1.3
_ROWS, _WIDTH, _NUM_TRIES = 256, 1024, 5


def choose_long_chunks(option: str, num_parameters: int, *, deterministic: bool) -> str:
    """The dtype for long chunks: "float16" (no second copy), "float32" or "bfloat16".

    Args:
        option: one of :data:`pocketllm_torch.options.PREFILL_DTYPES`; anything but "auto" is taken as it is.
        num_parameters: weights of the model, for the size of a second copy.
        deterministic: keep to one storage form, so that nothing here depends on a measurement.
    """
    if option != "auto":
        return option
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if deterministic or num_parameters * 2 > memory * _MEMORY_SHARE:
        return "float16"
    if missing_packed_bfloat16() is None and bfloat16_speedup() > _WORTHWHILE_SPEEDUP:
        return "bfloat16"
    return "float32" if num_parameters * 4 <= memory * _MEMORY_SHARE else "float16"


def bfloat16_speedup() -> float:
    """How many times faster a large bfloat16 product is than a float32 one here; takes some 50 ms."""
    x = torch.ones((_ROWS, _WIDTH))
    weight = torch.ones((_WIDTH, _WIDTH))
    return _best_time(DenseLinear(weight, None), x) / _best_time(bfloat16_form().make(weight, None), x.bfloat16())


def _best_time(layer: Linear, x: torch.Tensor) -> float:
    best = float("inf")
    for _ in range(_NUM_TRIES):
        start = time.perf_counter()
        layer(x)
        best = min(best, time.perf_counter() - start)
    return best
