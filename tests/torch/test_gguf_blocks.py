"""Every block format against the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from pocketllm_torch.models.gguf_blocks import dequantize
from pocketllm_torch.plugin import GGUF_TYPES


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
    num_scales = 2 if kind.name.endswith("_1") else 1
    scales = (rng.normal(size=(num_blocks, num_scales)) * 10.0 ** rng.integers(-3, 2, (num_blocks, 1))).astype(
        np.float16
    )
    blocks[:, : 2 * num_scales] = scales.view(np.uint8).reshape(num_blocks, -1)
    return blocks.reshape(-1)


@pytest.mark.parametrize("name", sorted(GGUF_TYPES))
def test_equals_the_gguf_package(name: str) -> None:
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
