"""A GGUF file and the config.json it was converted from say the same, in all that a backend reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import transformers

from pocketllm.checkpoint import open_checkpoint

_SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
_COMMON = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
    *("vocab_size", "rms_norm_eps", "tie_word_embeddings"),
)
_LINEAR: dict[str, Any] = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
_HYBRID_ROPE = {
    "rope_type": "default",
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "mrope_section": [2, 1, 1],
    "mrope_interleaved": True,
}

Keys = Callable[[gguf.GGUFWriter], None]


def translated(folder: Path, arch: str, config: Any, extra: Keys, *, head: bool = False) -> Mapping[str, object]:
    """The configuration read from a file with the keys that converters write for ``config``."""
    writer = gguf.GGUFWriter(folder / "m.gguf", arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    extra(writer)
    for name in ("token_embd.weight", *(["output.weight"] if head else [])):
        writer.add_tensor(name, np.zeros((config.vocab_size, config.hidden_size), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(folder)
    assert checkpoint.model_type == checkpoint.config["model_type"] == config.model_type
    return checkpoint.config


def agree(found: Mapping[str, object], config: Any, *names: str) -> None:
    wanted = config.to_dict()
    for name in (*_COMMON, *names):
        assert found[name] == wanted[name], name


@pytest.mark.parametrize("tied", [True, False])
def test_a_qwen2_gguf_has_the_settings_that_transformers_has(tmp_path: Path, tied: bool) -> None:
    config = transformers.Qwen2Config(
        **_SIZES,
        intermediate_size=96,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    found = translated(tmp_path, "qwen2", config, lambda writer: writer.add_feed_forward_length(96), head=not tied)
    agree(found, config, "intermediate_size", "hidden_act")
    assert (found["rope_theta"], found["rope_scaling"], found["head_dim"]) == (1e6, None, 16)
    assert "sliding_window" not in found


def test_a_qwen3_gguf_with_yarn_has_the_settings_that_transformers_has(tmp_path: Path) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.25,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    }
    config = transformers.Qwen3Config(
        **_SIZES, intermediate_size=96, head_dim=32, tie_word_embeddings=True, rope_parameters=rope
    )

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_feed_forward_length(96)
        writer.add_key_length(32)
        writer.add_value_length(32)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(1024)
        writer.add_rope_scaling_yarn_attn_factor(1.25)
        writer.add_rope_scaling_yarn_beta_fast(16.0)
        writer.add_rope_scaling_yarn_beta_slow(2.0)

    found = translated(tmp_path, "qwen3", config, extra)
    agree(found, config, "intermediate_size", "hidden_act", "head_dim")
    assert found["rope_scaling"] == {name: value for name, value in rope.items() if name != "rope_theta"}


@pytest.mark.parametrize("window", [16, None])
def test_a_gemma3_gguf_has_the_settings_that_transformers_has(tmp_path: Path, window: int | None) -> None:
    full = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
    config = transformers.Gemma3TextConfig(
        **_SIZES,
        intermediate_size=96,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=window or 4096,
        layer_types=None if window else ["full_attention"] * 8,
        rope_parameters={
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    )

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_feed_forward_length(96)
        writer.add_key_length(32)
        writer.add_value_length(32)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)
        if window:
            writer.add_sliding_window(window)

    found = translated(tmp_path, "gemma3", config, extra)
    agree(found, config, "intermediate_size", "head_dim", "query_pre_attn_scalar", "hidden_activation", "layer_types")
    assert found["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert (found["rope_theta"], found["rope_local_base_freq"]) == (1e6, 10000.0)
    assert found.get("sliding_window") == window


def hybrid_keys(config: Any, *, mtp: int = 0, types: bool = False) -> Keys:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_dimension_count(int(config.head_dim * 0.25))
        writer.add_rope_dimension_sections([2, 1, 1, 0])
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
        if types:
            linear = [kind == "linear_attention" for kind in config.layer_types]
            writer.add_array("qwen35.attention.recurrent_layers", [*linear, *[False] * mtp])
        writer.add_full_attention_interval(4)
        if mtp:
            writer.add_block_count(config.num_hidden_layers + mtp)
            writer.add_uint32("qwen35.nextn_predict_layers", mtp)
        if config.model_type == "qwen3_5_text":
            writer.add_feed_forward_length(config.intermediate_size)
        else:
            writer.add_expert_count(config.num_experts)
            writer.add_expert_used_count(config.num_experts_per_tok)
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)

    return extra


def agree_on_rope(found: Mapping[str, object]) -> None:
    assert found["rope_theta"] == _HYBRID_ROPE["rope_theta"]
    assert found["partial_rotary_factor"] == 0.25
    assert found["mrope_section"] == _HYBRID_ROPE["mrope_section"]
    assert found["rope_scaling"] is None


@pytest.mark.parametrize("types", [False, True])
@pytest.mark.parametrize("mtp", [0, 1])
def test_a_qwen35_gguf_has_the_settings_that_transformers_has(tmp_path: Path, mtp: int, types: bool) -> None:
    kinds = ["linear_attention", "full_attention"] * 4 if types else None
    config = transformers.Qwen3_5TextConfig(
        **_SIZES,
        **_LINEAR,
        intermediate_size=96,
        head_dim=32,
        tie_word_embeddings=True,
        layer_types=kinds,
        rope_parameters=_HYBRID_ROPE,
    )
    found = translated(tmp_path, "qwen35", config, hybrid_keys(config, mtp=mtp, types=types))
    agree(found, config, *_LINEAR, "head_dim", "intermediate_size", "hidden_act", "layer_types")
    agree_on_rope(found)
    assert found.get("mtp_num_hidden_layers", 0) == mtp


def test_a_qwen35moe_gguf_has_the_settings_that_transformers_has(tmp_path: Path) -> None:
    config = transformers.Qwen3_5MoeTextConfig(
        **_SIZES, **_LINEAR, **_EXPERTS, head_dim=32, tie_word_embeddings=False, rope_parameters=_HYBRID_ROPE
    )
    found = translated(tmp_path, "qwen35moe", config, hybrid_keys(config), head=True)
    agree(found, config, *_LINEAR, *_EXPERTS, "head_dim", "hidden_act", "layer_types")
    agree_on_rope(found)
    assert "intermediate_size" not in found
