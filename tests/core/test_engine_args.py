"""Every rule of ``EngineArgs``, and the environment variables that set it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pocketllm.engine_args import EngineArgs
from pocketllm.engine_env import ENGINE_ENVIRONMENT
from pocketllm.errors import ConfigurationError


def args(**fields: Any) -> EngineArgs:
    return EngineArgs(**{"model": "m", **fields})


def test_engine_arguments_have_their_documented_defaults() -> None:
    made = EngineArgs(model="m")
    assert made.backend == made.device == made.model_format == made.kv_cache_dtype == made.placement == "auto"
    assert (made.tensor_parallel_size, made.tensor_parallel_rank, made.device_ids) == (1, 0, ())
    assert (made.max_model_len, made.dtype, made.enable_batching, made.speculative_method) == (None, None, None, None)
    assert (made.prefill_chunk_tokens, made.attention_window, made.attention_sink_tokens) == (0, 0, 0)
    assert (made.enable_prefix_caching, made.speculative_tokens, made.max_batch_size) == (True, 1, 1)
    assert (made.backend_options, made.resolved_options, made.max_num_requests) == ({}, {}, 1024)


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"model": ""}, "model", "No model was given"),
        ({"model": None}, "model", "No model was given"),
        ({"model": 3}, "model", "not text"),
        ({"backend": "two words"}, "backend", "pocketllm plugins"),
        ({"backend": 1}, "backend", "not text"),
        ({"model_format": "onnx"}, "model_format", "'auto', 'safetensors' or 'gguf'"),
        ({"placement": "moon"}, "placement", "'auto', 'thread' or 'child'"),
        ({"device": "cuda:2"}, "device", "device='cuda' and device_ids=(2,)"),
        ({"device": "npu:1"}, "device", "device='npu' and device_ids=(1,)"),
        ({"device": "0"}, "device", "device_ids=(0,)"),
        ({"device": 0}, "device", "device_ids=(0,)"),
        ({"device": "my gpu"}, "device", "not a kind of device"),
        ({"device": "cpu", "device_ids": (0,)}, "device_ids", "device 'cpu' has none"),
        ({"device_ids": (1, 1)}, "device_ids", "names a card twice"),
        ({"device_ids": (-1,)}, "device_ids", "numbered from 0"),
        ({"device_ids": "0,x"}, "device_ids", "'x'"),
        ({"device_ids": (0.5,)}, "device_ids", "0.5"),
        ({"device_ids": (True,)}, "device_ids", "True"),
        ({"device_ids": (0,), "tensor_parallel_size": 2}, "device_ids", "has 1 cards for tensor_parallel_size = 2"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size", "at least 1"),
        ({"tensor_parallel_size": "2"}, "tensor_parallel_size", "not a whole number"),
        ({"tensor_parallel_rank": 1}, "tensor_parallel_rank", "outside the 1 ranks"),
        ({"tensor_parallel_rank": -1}, "tensor_parallel_rank", "at least 0"),
        ({"max_model_len": 0}, "max_model_len", "at least 1"),
        ({"max_model_len": True}, "max_model_len", "not a whole number"),
        ({"prefill_chunk_tokens": -1}, "prefill_chunk_tokens", "at least 0"),
        ({"attention_window": -1}, "attention_window", "at least 0"),
        ({"attention_sink_tokens": -1}, "attention_sink_tokens", "at least 0"),
        ({"attention_sink_tokens": 4}, "attention_sink_tokens", "needs an attention_window"),
        ({"speculative_tokens": 0}, "speculative_tokens", "at least 1"),
        ({"max_batch_size": 0}, "max_batch_size", "at least 1"),
        ({"max_batch_size": 2, "enable_batching": False}, "max_batch_size", "contradicts enable_batching"),
        ({"max_num_requests": 0}, "max_num_requests", "at least 1"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching", "not True or False"),
        ({"enable_batching": "yes"}, "enable_batching", "not True or False"),
        ({"dtype": 16}, "dtype", "not text"),
        ({"backend_options": [1]}, "backend_options", "not a mapping"),
        ({"backend_options": {1: 2}}, "backend_options", "not a mapping"),
        ({"backend_options": {"checkpoint_dir": 4}}, "backend_options", "not a path"),
    ],
)
def test_a_wrong_value_is_named_with_the_next_step(fields: dict[str, Any], param: str, part: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        args(**fields)
    assert caught.value.param == param
    assert part in caught.value.message


def test_words_are_lower_cased() -> None:
    made = args(backend="Torch", model_format="GGUF", kv_cache_dtype="FP8", device="CUDA", dtype="BFloat16")
    assert (made.backend, made.model_format, made.kv_cache_dtype) == ("torch", "gguf", "fp8")
    assert (made.device, made.dtype) == ("cuda", "bfloat16")


def test_open_sets_take_any_word() -> None:
    made = args(backend="somebody-elses", device="abacus")
    assert (made.backend, made.device) == ("somebody-elses", "abacus")


@pytest.mark.parametrize(("given", "ids"), [("2,3", (2, 3)), ([1], (1,)), (4, (4,)), ("", ()), (None, ()), ((), ())])
def test_device_ids_are_read_in_every_spelling(given: Any, ids: tuple[int, ...]) -> None:
    assert args(device_ids=given).device_ids == ids


def test_checkpoint_dir_is_another_spelling_of_the_model(tmp_path: Path) -> None:
    made = EngineArgs(backend_options={"checkpoint_dir": tmp_path, "other": 1})
    assert made.checkpoint_dir == str(tmp_path)
    assert args(backend_options={"checkpoint_dir": "here"}).checkpoint_dir == "here"
    assert args().checkpoint_dir == "m"
    assert EngineArgs(model=tmp_path).model == str(tmp_path)  # type: ignore[arg-type]  # paths are accepted


def test_the_callers_options_are_copied() -> None:
    options: dict[str, Any] = {"num_threads": 2}
    made = args(backend_options=options)
    options["num_threads"] = 3
    assert made.backend_options == {"num_threads": 2}


def test_engine_arguments_survive_msgpack() -> None:
    made = args(device_ids="2,3", backend_options={"a": [1, {"b": None}]}, max_model_len=7)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=EngineArgs) == made


def test_repr_shows_what_was_set() -> None:
    assert repr(args(max_model_len=7)) == "EngineArgs(model='m', max_model_len=7)"


class TestFromEnv:
    def test_every_field_has_a_variable(self) -> None:
        assert set(ENGINE_ENVIRONMENT) == set(EngineArgs.__struct_fields__) - {"resolved_options"}

    @pytest.mark.parametrize(
        ("variable", "text", "field", "value"),
        [
            ("POCKETLLM_MODEL", "a", "model", "a"),
            ("CKPT_PATH", "a", "model", "a"),
            ("POCKETLLM_BACKEND", "torch", "backend", "torch"),
            ("TOKENIZER_PATH", "t", "tokenizer_path", "t"),
            ("CONFIG_PATH", "c", "config_path", "c"),
            ("CONFIG", "c", "config_path", "c"),
            ("CKPT_FORMAT", "gguf", "model_format", "gguf"),
            ("TENSOR_PARALLEL_SIZE", "2", "tensor_parallel_size", 2),
            ("TP_WORLD", "2", "tensor_parallel_size", 2),
            ("DEVICE", "cuda", "device", "cuda"),
            ("POCKETLLM_DEVICE_IDS", "2,3", "device_ids", (2, 3)),
            ("MAX_MODEL_LEN", "64", "max_model_len", 64),
            ("DEEPSEEK_MAX_MODEL_LEN", "64", "max_model_len", 64),
            ("DTYPE", "float32", "dtype", "float32"),
            ("POCKETLLM_QWEN_KV_CACHE_DTYPE", "fp8", "kv_cache_dtype", "fp8"),
            ("KV_CACHE_DTYPE", "fp8", "kv_cache_dtype", "fp8"),
            ("PREFILL_CHUNK_TOKENS", "8", "prefill_chunk_tokens", 8),
            ("POCKETLLM_CPP_PREFILL_CHUNK", "8", "prefill_chunk_tokens", 8),
            ("ENABLE_PREFIX_CACHING", "off", "enable_prefix_caching", False),
            ("ENABLE_PREFIX_CACHING", "", "enable_prefix_caching", False),
            ("ENABLE_PREFIX_CACHING", "Yes", "enable_prefix_caching", True),
            ("QWEN_ATTENTION_WINDOW", "8", "attention_window", 8),
            ("SPECULATIVE_METHOD", "mtp", "speculative_method", "mtp"),
            ("SPECULATIVE_TOKENS", "3", "speculative_tokens", 3),
            ("MAX_BATCH_SIZE", "4", "max_batch_size", 4),
            ("DEEPSEEK_SERVING_MAX_RUNNING_REQUESTS", "4", "max_batch_size", 4),
            ("POCKETLLM_ENABLE_BATCHING", "0", "enable_batching", False),
            ("POCKETLLM_BACKEND_OPTIONS", '{"n": 1}', "backend_options", {"n": 1}),
            ("POCKETLLM_PLACEMENT", "child", "placement", "child"),
            ("POCKETLLM_MAX_NUM_REQUESTS", "5", "max_num_requests", 5),
        ],
    )
    def test_each_variable_sets_its_field(self, variable: str, text: str, field: str, value: object) -> None:
        assert getattr(EngineArgs.from_env({"CKPT_PATH": "m", variable: text}), field) == value

    def test_variables_that_belong_together_are_read_together(self) -> None:
        made = EngineArgs.from_env({"CKPT_PATH": "m", "TP_WORLD": "2", "TP_RANK": "1"})
        assert (made.tensor_parallel_size, made.tensor_parallel_rank) == (2, 1)
        made = EngineArgs.from_env({"CKPT_PATH": "m", "QWEN_ATTENTION_WINDOW": "8", "QWEN_ATTENTION_SINK_TOKENS": "2"})
        assert (made.attention_window, made.attention_sink_tokens) == (8, 2)

    def test_the_first_found_wins_and_empty_is_unset(self) -> None:
        environ = {"POCKETLLM_MODEL": " ", "CKPT_PATH": "second", "CONFIG_PATH": "first", "CONFIG": "second"}
        made = EngineArgs.from_env(environ)
        assert (made.model, made.config_path) == ("second", "first")

    def test_an_override_wins_and_none_is_no_override(self) -> None:
        made = EngineArgs.from_env({"CKPT_PATH": "m", "DEVICE": "cuda"}, model="mine", device=None)
        assert (made.model, made.device) == ("mine", "cuda")

    def test_backend_options_are_merged(self) -> None:
        environ = {"CKPT_PATH": "m", "POCKETLLM_BACKEND_OPTIONS": '{"a": 1, "b": 1}'}
        assert EngineArgs.from_env(environ, backend_options={"b": 2}).backend_options == {"a": 1, "b": 2}

    @pytest.mark.parametrize(
        ("variable", "text"),
        [
            ("MAX_MODEL_LEN", "many"),
            ("ENABLE_PREFIX_CACHING", "perhaps"),
            ("POCKETLLM_BACKEND_OPTIONS", "[1]"),
            ("POCKETLLM_BACKEND_OPTIONS", "{"),
        ],
    )
    def test_a_wrong_text_names_its_variable(self, variable: str, text: str) -> None:
        with pytest.raises(ConfigurationError, match=f"environment variable {variable}"):
            EngineArgs.from_env({"CKPT_PATH": "m", variable: text})

    def test_without_a_model_the_environment_is_not_enough(self) -> None:
        with pytest.raises(ConfigurationError, match="No model was given"):
            EngineArgs.from_env({})

    def test_the_environment_of_the_process_is_read_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POCKETLLM_MODEL", "from the process")
        assert EngineArgs.from_env().model == "from the process"


@pytest.mark.parametrize(
    "fields, expected",
    [({}, 16), ({"max_batch_size": 4}, 4), ({"enable_batching": False}, 1), ({"enable_batching": True}, 16)],
)
def test_the_batch_size_is_the_backends_unless_somebody_says_otherwise(fields: dict[str, Any], expected: int) -> None:
    assert EngineArgs(model="x", **fields).batch_size(default=16) == expected
