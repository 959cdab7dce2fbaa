"""A GGUF's metadata in the words of config.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketllm.checkpoint.gguf import read_header, read_tensors
from pocketllm.checkpoint.gguf_config import model_type, translate_config
from pocketllm.errors import CheckpointError
from tests.checkpoint.sample_files import ARRAY, F32, LLAMA_KEYS, LLAMA_TENSORS, Tensor, Typed, gguf_bytes


def config_of(folder: Path, keys: dict[str, object], tensors: tuple[Tensor, ...] = LLAMA_TENSORS) -> dict[str, object]:
    file = folder / "model.gguf"
    file.write_bytes(gguf_bytes(keys, tensors))
    header = read_header(file)
    return translate_config(header.metadata, read_tensors(header), file)


def renamed(arch: str) -> dict[str, object]:
    keys = {key.replace("llama.", f"{arch}."): value for key, value in LLAMA_KEYS.items()}
    return {**keys, "general.architecture": arch}


def test_llama_gets_every_name_an_engine_reads(tmp_path: Path) -> None:
    assert config_of(tmp_path, LLAMA_KEYS) == {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "max_position_embeddings": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "vocab_size": 8,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }


def test_an_output_head_and_biases_show_in_the_config(tmp_path: Path) -> None:
    names = ("output.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate.bias")
    config = config_of(tmp_path, LLAMA_KEYS, tuple(Tensor(name, (4,), 0, 16) for name in names))
    assert (config["tie_word_embeddings"], config["attention_bias"], config["mlp_bias"]) == (False, True, True)


def test_absent_keys_have_the_formats_defaults(tmp_path: Path) -> None:
    keys = {key: value for key, value in LLAMA_KEYS.items() if "head_count_kv" not in key and "freq_base" not in key}
    config = config_of(tmp_path, {**keys, "llama.attention.key_length": 24, "llama.vocab_size": 77})
    assert config["num_key_value_heads"] == 4
    assert config["rope_theta"] == 10000.0
    assert config["head_dim"] == 24
    assert config["vocab_size"] == 77


def test_rope_scaling_is_gathered(tmp_path: Path) -> None:
    keys = {
        **LLAMA_KEYS,
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32768,
    }
    assert config_of(tmp_path, keys)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    }
    assert config_of(tmp_path, {**LLAMA_KEYS, "llama.rope.scaling.type": "none"})["rope_scaling"] is None
    bare = config_of(tmp_path, {**LLAMA_KEYS, "llama.rope.scaling.factor": 2.0})
    assert bare["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}


def test_gemma3_gets_the_constants_its_files_lack(tmp_path: Path) -> None:
    keys = {**renamed("gemma3"), "gemma3.block_count": 8, "gemma3.attention.sliding_window": 512}
    config = config_of(tmp_path, {**keys, "gemma3.attention.key_length": 256})
    assert config["model_type"] == "gemma3_text"
    assert config["rope_local_base_freq"] == 10000.0
    assert config["sliding_window"] == 512
    assert config["query_pre_attn_scalar"] == 256
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 2
    wide = {**renamed("gemma3"), "gemma3.block_count": 62, "gemma3.attention.key_length": 128}
    assert config_of(tmp_path, wide)["query_pre_attn_scalar"] == 64 // 4
    flags = {**keys, "gemma3.attention.sliding_window_pattern": [True, False] * 4}
    assert config_of(tmp_path, flags)["layer_types"] == ["sliding_attention", "full_attention"] * 4
    every = {**keys, "gemma3.attention.sliding_window_pattern": 2}
    assert config_of(tmp_path, every)["layer_types"] == ["sliding_attention", "full_attention"] * 4


def test_qwen35_gets_its_linear_attention_sizes(tmp_path: Path) -> None:
    sizes = {"conv_kernel": 4, "state_size": 128, "group_count": 16, "time_step_rank": 32, "inner_size": 4096}
    keys = {
        **renamed("qwen35"),
        **{f"qwen35.ssm.{name}": value for name, value in sizes.items()},
        "qwen35.block_count": 9,
        "qwen35.nextn_predict_layers": 1,
        "qwen35.attention.key_length": 256,
        "qwen35.rope.dimension_count": 64,
        "qwen35.rope.dimension_sections": [11, 11, 10, 0],
        "qwen35.full_attention_interval": 4,
    }
    config = config_of(tmp_path, keys)
    expected = {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 8,
        "mtp_num_hidden_layers": 1,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "full_attention_interval": 4,
    }
    assert {name: config[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("arch", "name"),
    [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3moe", "qwen3_moe"), ("gemma3", "gemma3_text"), ("mamba", "mamba")],
)
def test_architectures_have_hugging_face_names(tmp_path: Path, arch: str, name: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf_bytes({"general.architecture": arch}))
    assert model_type(read_header(file).metadata, file) == name


def test_zero_stands_for_absent_where_converters_write_it(tmp_path: Path) -> None:
    config = config_of(tmp_path, {**LLAMA_KEYS, "llama.expert_count": 0, "llama.attention.sliding_window": 0})
    assert "num_experts" not in config
    assert "sliding_window" not in config


def test_per_layer_values_stay_lists(tmp_path: Path) -> None:
    config = config_of(tmp_path, {**LLAMA_KEYS, "llama.attention.head_count_kv": [2, 4]})
    assert config["num_key_value_heads"] == [2, 4]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 0),
        ("llama.block_count", Typed(5, -1)),
        ("llama.block_count", Typed(10, 1 << 40)),
        ("llama.embedding_length", "64"),
        ("llama.embedding_length", True),
        ("llama.attention.head_count", 4.0),
        ("llama.attention.head_count_kv", Typed(ARRAY, (F32, [1.0]))),
        ("llama.rope.freq_base", float("nan")),
        ("llama.rope.freq_base", float("inf")),
        ("llama.attention.layer_norm_rms_epsilon", -1e-5),
        ("llama.attention.layer_norm_rms_epsilon", "1e-5"),
        ("general.architecture", 3),
        ("general.architecture", ""),
    ],
)
def test_a_value_no_engine_can_use_names_its_key(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=key):
        config_of(tmp_path, {**LLAMA_KEYS, key: value})


@pytest.mark.parametrize("value", [1e-5, 1e-6, 0.1, 1e6, 500000.0, 3.4028234e38, 1e-45, 7.0])
def test_single_precision_numbers_come_back_as_the_decimal_that_was_meant(tmp_path: Path, value: float) -> None:
    single = config_of(tmp_path, {**LLAMA_KEYS, "llama.rope.freq_base": Typed(F32, value)})["rope_theta"]
    assert single == pytest.approx(value, rel=1e-6)
    if 1e-37 < value < 1e38:
        assert single == value
    double = config_of(tmp_path, {**LLAMA_KEYS, "llama.rope.freq_base": Typed(12, 0.123456789012345)})
    assert double["rope_theta"] == 0.123456789012345
