"""Flags over environment over defaults, for every engine option."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from pocketllm.cli.engine_options import EngineCommand, engine_args_from_options, engine_options
from pocketllm.engine_args import EngineArgs
from pocketllm.engine_env import ENGINE_ENVIRONMENT
from pocketllm.errors import ConfigurationError

_made: list[EngineArgs] = []


@click.command(cls=EngineCommand)
@click.option("--own", help="Its own.")
@engine_options
def opened(own: str | None, **options: Any) -> None:
    _made.append(engine_args_from_options(**options))


def parse(*flags: str, **environ: str) -> EngineArgs:
    result = CliRunner().invoke(opened, list(flags), env=environ, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return _made.pop()


FLAGS = [
    ("--model a", "model", "a"),
    ("--backend torch", "backend", "torch"),
    ("--tokenizer-path t", "tokenizer_path", "t"),
    ("--config-path c", "config_path", "c"),
    ("--model-format gguf", "model_format", "gguf"),
    ("--device cuda", "device", "cuda"),
    ("--device-ids 2,3", "device_ids", (2, 3)),
    ("--max-model-len 64", "max_model_len", 64),
    ("--dtype float32", "dtype", "float32"),
    ("--kv-cache-dtype fp8", "kv_cache_dtype", "fp8"),
    ("--prefill-chunk-tokens 8", "prefill_chunk_tokens", 8),
    ("--no-enable-prefix-caching", "enable_prefix_caching", False),
    ("--enable-prefix-caching", "enable_prefix_caching", True),
    ("--max-batch-size 4", "max_batch_size", 4),
    ("--enable-batching", "enable_batching", True),
    ("--no-enable-batching", "enable_batching", False),
    ("--attention-window 8", "attention_window", 8),
    ("--speculative-method mtp", "speculative_method", "mtp"),
    ("--speculative-tokens 2", "speculative_tokens", 2),
    ("--tensor-parallel-size 2", "tensor_parallel_size", 2),
    ("--placement child", "placement", "child"),
    ("--max-num-requests 3", "max_num_requests", 3),
]


@pytest.mark.parametrize(("flags", "field", "value"), FLAGS)
def test_each_flag_sets_its_field(flags: str, field: str, value: object) -> None:
    assert getattr(parse(*flags.split()), field) == value


def test_a_window_with_sinks_and_a_rank() -> None:
    made = parse(
        *("--attention-window", "8", "--attention-sink-tokens", "2"),
        *("--tensor-parallel-size", "2", "--tensor-parallel-rank", "1"),
    )
    assert (made.attention_sink_tokens, made.tensor_parallel_rank) == (2, 1)


def test_a_flag_wins_over_a_variable_over_the_default() -> None:
    assert parse().device == "auto"
    assert parse(DEVICE="cuda").device == "cuda"
    assert parse("--device", "cpu", DEVICE="cuda").device == "cpu"
    assert parse("--no-enable-prefix-caching", ENABLE_PREFIX_CACHING="1").enable_prefix_caching is False


def test_backend_options_are_json_where_they_can_be_and_merge_over_the_environment() -> None:
    made = parse(
        *("--backend-option", "n=3", "--backend-option", "text=plain words", "--backend-option", 'list=["a", 1]'),
        *("--backend-option", "equation=a=b", "--backend-option", 'quoted="7"', "--backend-option", "empty="),
        POCKETLLM_BACKEND_OPTIONS='{"n": 1, "m": 2}',
    )
    assert made.backend_options == {
        "n": 3,
        "m": 2,
        "text": "plain words",
        "list": ["a", 1],
        "equation": "a=b",
        "quoted": "7",
        "empty": "",
    }


@pytest.mark.parametrize("text", ["novalue", "=3", ""])
def test_a_backend_option_without_key_or_value(text: str) -> None:
    result = CliRunner().invoke(opened, ["--backend-option", text])
    assert result.exit_code == 2
    assert "is not KEY=VALUE" in result.output


def test_the_embedded_default_is_said() -> None:
    said: list[str] = []
    made = engine_args_from_options(environ={}, announce=said.append, backend="echo")
    assert (made.model, made.backend) == ("smollm2", "echo")
    assert said == ["No --model given: taking the embedded default, smollm2."]


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({"CKPT_PATH": "m"}, {}),
        ({}, {"model": "m"}),
        ({}, {"backend_option": [("checkpoint_dir", "m")]}),
    ],
)
def test_a_named_model_needs_no_word(environ: dict[str, str], options: dict[str, Any]) -> None:
    said: list[str] = []
    assert engine_args_from_options(environ=environ, announce=said.append, **options).checkpoint_dir == "m"
    assert said == []


def test_an_error_names_the_field() -> None:
    with pytest.raises(ConfigurationError, match="device_ids"):
        engine_args_from_options(environ={}, device="cuda:1")


def test_help_has_two_sections_and_names_every_variable() -> None:
    output = CliRunner().invoke(opened, ["--help"], terminal_width=200).output
    own, engine = output.split("Engine options:")
    assert "--own" in own
    assert "--model" not in own
    flat = " ".join(engine.split())
    for names in ENGINE_ENVIRONMENT.values():
        assert f"[env: {', '.join(names)}]" in flat
