"""Rotation and frequency rules against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from pocketllm.errors import CheckpointError
from pocketllm_torch.layers.rope import RotaryTable, inverse_frequencies, rope_settings, rotate_

CPU = torch.device("cpu")
RULES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 1e5},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["rope_type"]))
def test_every_rotation_rule_equals_transformers(rule: dict[str, Any]) -> None:
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=rule)
    positions = torch.tensor([0, 1, 5, 100, 2047])
    x = torch.randn((5, 3, 64), generator=torch.Generator().manual_seed(0))
    cos, sin = LlamaRotaryEmbedding(config)(x, positions[None])
    heads = x.transpose(0, 1)[None]
    expected, _ = apply_rotary_pos_emb(heads, heads, cos, sin)
    ours = x.clone()
    rotate_(ours, *RotaryTable(inverse_frequencies(rule, 64), 2048, CPU).at(positions))
    torch.testing.assert_close(ours, expected[0].transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_half_precision_is_rotated_in_float32() -> None:
    x = torch.randn((4, 2, 8), generator=torch.Generator().manual_seed(0)).bfloat16()
    cos, sin = RotaryTable(inverse_frequencies(RULES[0], 8), 10, CPU).at(torch.arange(4))
    exact = x.float()
    rotate_(exact, cos, sin)
    rotate_(x, cos, sin)
    assert torch.equal(x, exact.bfloat16())


def test_a_slice_of_a_wider_row_is_rotated_in_place() -> None:
    rows = torch.randn((3, 5, 8), generator=torch.Generator().manual_seed(0))
    expected = rows.clone()
    table = RotaryTable(inverse_frequencies(RULES[0], 8), 10, CPU).at(torch.arange(3))
    part = expected[:, :2].clone()
    rotate_(part, *table)
    rotate_(rows[:, :2], *table)
    assert torch.equal(rows[:, :2], part)
    assert torch.equal(rows[:, 2:], expected[:, 2:])


def test_settings_come_from_either_spelling() -> None:
    modern = rope_settings({"rope_parameters": RULES[2]})
    legacy = rope_settings(
        {"rope_theta": 5e5, "rope_scaling": {key: value for key, value in RULES[2].items() if key != "rope_theta"}}
    )
    assert modern == legacy == RULES[2]
    assert rope_settings({"rope_scaling": {"type": "linear", "factor": 2.0}})["rope_type"] == "linear"
    assert rope_settings({}) == {"rope_theta": 10000.0, "rope_type": "default"}


@pytest.mark.parametrize(
    "rule, word",
    [
        ({"rope_type": "spiral", "rope_theta": 1e4}, "spiral"),
        ({"rope_type": "linear", "rope_theta": 1e4}, "factor"),
        ({"rope_type": "default", "rope_theta": 0}, "rope_theta"),
        ({"rope_type": "default", "rope_theta": float("nan")}, "rope_theta"),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": True}, "factor"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_named(rule: dict[str, object], word: str) -> None:
    with pytest.raises(CheckpointError, match=word):
        inverse_frequencies(rule, 8)
