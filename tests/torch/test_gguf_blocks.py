"""Every block format against the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from pocketllm_torch.plugin import GGUF_TYPES
from pocketllm_torch.weights.gguf_blocks import dequantize

# Where a block has its float16 numbers; at its beginning in the others.
SCALES_AT = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def random_blocks(kind: gguf.GGMLQuantizationType, num_blocks: int) -> np.ndarray:
    """Blocks with random codes of every value and scales of every sane size."""
    rng = np.random.default_rng(int(kind))
    elements, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    if elements == 1:
        dtype = {4: np.float32, 2: np.float16}[num_bytes] if kind.name != "BF16" else np.float32
        values = rng.normal(size=num_blocks * 32).astype(dtype)
        data = values.view(np.uint32) >> 16 if kind.name == "BF16" else values
        return (data.astype(np.uint16) if kind.name == "BF16" else data).view(np.uint8)
    blocks = rng.integers(0, 256, size=(num_blocks, num_bytes), dtype=np.uint8)
    if kind.name == "MXFP4":
        blocks[:, 0] = rng.integers(100, 150, num_blocks)  # a power of two
        return blocks.reshape(-1)
    for at in SCALES_AT.get(kind.name, (0,)):
        scales = (rng.normal(size=(num_blocks, 1)) * 10.0 ** rng.integers(-3, 2, (num_blocks, 1))).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(-1)


@pytest.mark.parametrize("name", sorted(GGUF_TYPES))
def test_dequantised_blocks_equal_the_gguf_package(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    data = random_blocks(kind, 200)
    ours = dequantize(name, torch.from_numpy(data.copy())).float()
    elements, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    theirs = gguf.quants.dequantize(data.reshape(1, -1), kind).reshape(-1)
    assert ours.shape == (data.size // num_bytes * elements,)
    np.testing.assert_array_equal(ours.numpy(), theirs)


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(KeyError):
        dequantize("Q9_9", torch.zeros(34, dtype=torch.uint8))
