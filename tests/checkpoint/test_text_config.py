"""The language model's part of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketllm.checkpoint import open_checkpoint
from pocketllm.checkpoint.text_config import text_part
from pocketllm.errors import CheckpointError
from tests.checkpoint.sample_files import LLAMA_KEYS, gguf_bytes, write_json


def test_a_model_alone_is_its_own_text_part() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "text_config": None}
    assert text_part(config, "config.json") == config


def test_the_text_part_of_a_wrapper_comes_to_the_root() -> None:
    config = {
        "model_type": "qwen3_5",
        "image_token_id": 7,
        "tie_word_embeddings": True,
        "eos_token_id": 5,
        "quantization_config": {"quant_method": "fp8"},
        "vision_config": {"hidden_size": 1},
        "text_config": {
            "model_type": "qwen3_5_text",
            "hidden_size": 64,
            "eos_token_id": 6,
            "tie_word_embeddings": None,
            "head_dim": 256,
        },
    }
    assert text_part(config, "config.json") == {
        "model_type": "qwen3_5_text",
        "hidden_size": 64,
        "head_dim": 256,
        "eos_token_id": 6,
        "tie_word_embeddings": True,
        "quantization_config": {"quant_method": "fp8"},
    }


def test_a_text_part_without_a_name_gets_the_wrappers() -> None:
    assert text_part({"model_type": "qwen3_5_moe", "text_config": {}}, "")["model_type"] == "qwen3_5_moe_text"
    assert "model_type" not in text_part({"text_config": {"hidden_size": 1}}, "")


@pytest.mark.parametrize("release", [True, False])
def test_gemma3_gets_what_its_releases_leave_out(release: bool) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    # Gemma 3 4B says no more than this; a file written by transformers says everything.
    text = {"model_type": "gemma3_text", **sizes}
    whole = transformers.Gemma3TextConfig(**sizes).to_dict()
    found = text_part({"model_type": "gemma3", "text_config": text if release else whole}, "")
    names = (
        *("vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"),
        *("rms_norm_eps", "hidden_activation", "query_pre_attn_scalar", "tie_word_embeddings", *sizes),
    )
    assert {name: found[name] for name in names} == {name: whole[name] for name in names}
    if release:
        assert found["rope_theta"] == whole["rope_parameters"]["full_attention"]["rope_theta"]
        assert found["rope_local_base_freq"] == whole["rope_parameters"]["sliding_attention"]["rope_theta"]
    else:
        assert found["rope_parameters"] == whole["rope_parameters"]
        assert "rope_theta" not in found


@pytest.mark.parametrize("wrapper", ["Qwen3_5Config", "Qwen3_5MoeConfig", "Gemma3Config"])
def test_a_wrapper_that_transformers_wrote_keeps_its_text_settings(tmp_path: Path, wrapper: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, wrapper)()
    config.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.model_type == config.model_type
    assert checkpoint.text_config["model_type"] == config.text_config.model_type
    written = config.text_config.to_dict()
    for name in ("hidden_size", "num_hidden_layers", "head_dim", "vocab_size", "rope_parameters", "layer_types"):
        assert checkpoint.text_config[name] == written[name], name


def test_a_gguf_has_the_text_part_alone(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(LLAMA_KEYS))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.text_config == checkpoint.config


@pytest.mark.parametrize("value", [3, [], "x", True])
def test_a_text_part_that_is_none_is_refused(tmp_path: Path, value: object) -> None:
    write_json(tmp_path / "config.json", {"model_type": "qwen3_5", "text_config": value})
    with pytest.raises(CheckpointError, match=r"config\.json: text_config is a \w+ where an object belongs"):
        _ = open_checkpoint(tmp_path).text_config
