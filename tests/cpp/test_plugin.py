"""The hooks that core calls before and while it opens the native engine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from pocketllm import LLM, SamplingParams
from pocketllm.checkpoint import open_checkpoint
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import CheckpointError, ConfigurationError, UnsupportedFeatureError
from pocketllm.types import Offer, Refusal
from pocketllm_cpp import _native, plugin
from pocketllm_cpp.opening import open_engine
from pocketllm_torch.engine.opening import open_engine as open_torch_engine
from tests.cpp.driving import CppDriver


def probe(path: Path, **args: Any) -> Offer | Refusal:
    return plugin.pocketllm_probe(open_checkpoint(path), EngineArgs(model=str(path), **args))


def with_config(path: Path, tmp_path: Path, **changes: object) -> Path:
    """The toy checkpoint under another configuration."""
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    return tmp_path


def test_the_card_says_that_steps_need_no_interpreter() -> None:
    card = plugin.pocketllm_backend()
    assert (card.name, card.devices, card.holds_gil) == ("cpp", tuple(_native.devices()), False)
    assert all(option.doc for option in card.options)


def test_the_probe_is_quick(smollm2_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    args = EngineArgs(model=str(smollm2_path))
    started = time.perf_counter()
    offer = plugin.pocketllm_probe(checkpoint, args)
    # A hundred milliseconds are allowed; the margin is for a machine that does ten things at once.
    assert time.perf_counter() - started < 1.0
    assert isinstance(offer, Offer)
    assert "llama from gguf on cpu" in offer.reason


def test_auto_prefers_it_unless_there_is_a_gpu_for_torch(toy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rank(**args: Any) -> int:
        offer = probe(toy_path, **args)
        assert isinstance(offer, Offer)
        return offer.rank

    monkeypatch.setattr(plugin.os.path, "exists", lambda path: False)
    assert rank() > 50
    monkeypatch.setattr(plugin.os.path, "exists", lambda path: True)
    assert 0 < rank() < 50
    assert rank(device="cpu") > 50


def test_the_reference_device_is_taken_where_it_is_asked_for(toy_path: Path) -> None:
    offered = {device: probe(toy_path, device=device) for device in ("auto", "cpu", "reference")}
    assert [offer.device for offer in offered.values() if isinstance(offer, Offer)] == ["cpu", "cpu", "reference"]
    prompt, sampling = [5, 9, 41], SamplingParams(max_tokens=6)
    answers = []
    for device in ("cpu", "reference"):
        with LLM(EngineArgs(model=str(toy_path), backend="cpp", device=device, max_model_len=64)) as llm:
            assert llm.capabilities.details["device"] == device
            answers.append(llm.generate([prompt], sampling)[0].token_ids)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "args, words",
    [
        ({"dtype": "bfloat16"}, "dtype = 'bfloat16'"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype = 'fp8'"),
        ({"attention_window": 128}, "attention_window = 128"),
        ({"speculative_method": "mtp"}, "speculative_method = 'mtp'"),
    ],
)
def test_arguments_it_does_not_act_on_are_refused(toy_path: Path, args: dict[str, Any], words: str) -> None:
    answer = probe(toy_path, **args)
    assert isinstance(answer, Refusal)
    assert words in answer.reason


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
    ],
)
def test_what_the_native_reader_refuses_the_probe_refuses(
    toy_path: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    path = with_config(toy_path, tmp_path, **changes)
    answer = probe(path)
    assert isinstance(answer, Refusal)
    assert words in answer.reason
    with pytest.raises((CheckpointError, UnsupportedFeatureError)) as caught:
        open_engine(EngineArgs(model=str(path)), open_checkpoint(path), lambda stage, fraction: None)
    assert caught.value.message == answer.reason


def test_a_configuration_without_weights_is_refused(toy_path: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((toy_path / "config.json").read_bytes())
    answer = probe(tmp_path)
    assert isinstance(answer, Refusal)
    assert "weights" in answer.reason


@pytest.mark.parametrize(
    "options, param",
    [
        ({"num_threads": 0}, "backend_options.num_threads"),
        ({"activation": "int4"}, "backend_options.activation"),
        ({"prefill_token_budget": -1}, "backend_options.prefill_token_budget"),
        ({"kv_cache_bytes": 10}, "backend_options.kv_cache_bytes"),
        ({"num_snapshots": 0}, "backend_options.num_snapshots"),
        ({"unknown": 1}, "backend_options.unknown"),
    ],
)
def test_a_wrong_backend_option_is_refused_by_name(toy_path: Path, options: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CppDriver.open(toy_path, options=options)
    assert caught.value.param == param


def test_a_context_beyond_the_checkpoints_is_refused(toy_path: Path) -> None:
    args = EngineArgs(model=str(toy_path), max_model_len=10**6)
    with pytest.raises(ConfigurationError, match="max_position_embeddings") as caught:
        open_engine(args, open_checkpoint(toy_path), lambda stage, fraction: None)
    assert caught.value.param == "max_model_len"


def test_exact_activations_can_be_asked_for_by_either_name(toy_path: Path) -> None:
    for args, options in (({"dtype": "float32"}, {}), ({}, {"activation": "float32"})):
        with CppDriver.open(toy_path, options=options, max_model_len=64, **args) as driver:
            assert driver.engine.pocketllm_capabilities().details["activation_dtype"] == "float32"
    with pytest.raises(ConfigurationError, match="leave out one"):
        CppDriver.open(toy_path, options={"activation": "int8"}, dtype="float32")


def test_it_declares_all_that_torch_declares_and_more(toy_path: Path) -> None:
    checkpoint = open_checkpoint(toy_path)
    args = EngineArgs(model=str(toy_path), max_batch_size=4, max_model_len=256)
    torch_engine = open_torch_engine(args, checkpoint, lambda stage, fraction: None)
    try:
        theirs = torch_engine.pocketllm_capabilities()
    finally:
        torch_engine.pocketllm_close(10.0)
        torch_engine.events.close()
    with CppDriver.open(toy_path, max_batch_size=4, max_model_len=256) as driver:
        ours = driver.engine.pocketllm_capabilities()
    # What may differ: who it is, where it runs, and what it does beyond torch.
    own = {"name", "devices", "details", "models"}
    more = {"supports_prefix_caching", "batch_invariant"}
    fields = set(ours.__struct_fields__) - own
    missing = [
        name
        for name in fields
        if getattr(ours, name) != getattr(theirs, name) and not (name in more and getattr(ours, name) is True)
    ]
    assert missing == []
    assert ours.supports_prefix_caching
    assert ours.batch_invariant


def test_details_tell_what_runs(toy_path: Path) -> None:
    with CppDriver.open(
        toy_path, options={"num_threads": 1, "prefill_token_budget": 64}, max_model_len=64, kv_cache_dtype="q8_0"
    ) as driver:
        details = driver.engine.pocketllm_capabilities().details
    assert details["device"] == "cpu"
    assert details["instruction_set"] == _native.instruction_set()
    assert details["num_threads"] == 1
    assert details["prefill_chunk_tokens"] == 64
    assert details["kv_cache_dtype"] == "Q8_0"
    assert details["activation_dtype"] == "int8"


@pytest.mark.parametrize(
    ("options", "fields", "expected"),
    [
        ({}, {}, (512, 128)),
        ({"prefill_token_budget": 512}, {}, (512, 0)),
        ({"prefill_token_budget": 0}, {}, (0, 0)),
        ({}, {"prefill_chunk_tokens": 32}, (32, 0)),
        ({"prefill_token_budget": 64}, {"prefill_chunk_tokens": 32}, (64, 0)),
    ],
)
def test_a_budget_that_was_asked_for_holds_beside_decodes_too(
    toy_path: Path, options: dict[str, Any], fields: dict[str, Any], expected: tuple[int, int]
) -> None:
    with CppDriver.open(toy_path, options={"num_threads": 1, **options}, max_model_len=64, **fields) as driver:
        details = driver.engine.pocketllm_capabilities().details
        assert (details["prefill_chunk_tokens"], details["prefill_tokens_beside_decodes"]) == expected
        driver.engine._native.set_prefill_token_budget(256)
        assert driver.engine._native.prefill_tokens_beside_decodes == 0


def test_eos_ids_come_from_the_guides_sources_in_order(toy_path: Path, tmp_path: Path) -> None:
    def source(path: Path, **options: Any) -> tuple[str, tuple[int, ...]]:
        with CppDriver.open(path, options=options, max_model_len=64) as driver:
            capabilities = driver.engine.pocketllm_capabilities()
            return capabilities.details["eos_source"], capabilities.eos_token_ids

    assert source(toy_path, eos_token_id=[4, 5]) == ("override", (4, 5))
    assert source(toy_path, eos_token_id=4) == ("override", (4,))
    assert source(toy_path) == ("generation_config", ())
    path = with_config(toy_path, tmp_path, eos_token_id=7)
    (path / "generation_config.json").unlink()
    assert source(path) == ("config", ())
    path = with_config(path, tmp_path, eos_token_id=None)
    assert source(path) == ("tokenizer", ())
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (path / file).unlink()
    assert source(path) == ("none", ())
    for wrong in (True, "2", -1):
        with pytest.raises(ConfigurationError):
            CppDriver.open(toy_path, options={"eos_token_id": wrong})
