"""The module below the level of text: names, values, refusals, and what a sequence keeps."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import pocketllm_cpp
from pocketllm.errors import CheckpointError, ConfigurationError, UnsupportedFeatureError
from pocketllm_cpp import (
    ForwardSmokeOptions,
    PersistentEngine,
    QwenEngine,
    QwenEngineOptions,
    SamplingParams,
    _native,
)

PROMPT = [5, 9, 41, 77, 200, 31, 8, 160, 12, 99, 100, 3, 4, 250, 17, 60, 61, 62]


def test_every_public_name_can_be_imported() -> None:
    assert pocketllm_cpp.backend == "cpu"
    for name in pocketllm_cpp.__all__:
        assert getattr(pocketllm_cpp, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Tensor'"):
        _ = pocketllm_cpp.Tensor


def instruction_set_asked_for(name: str) -> subprocess.CompletedProcess[str]:
    program = "from pocketllm_cpp import _native; print(_native.instruction_set())"
    environment = {**os.environ, "POCKET_INSTRUCTION_SET": name}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_environment_takes_one_of_the_instruction_sets_that_are_there() -> None:
    refused = instruction_set_asked_for("sse9")
    assert refused.returncode != 0
    message = refused.stderr.splitlines()[-1]
    assert 'ConfigurationError: POCKET_INSTRUCTION_SET is "sse9"' in message
    names = re.findall(r"\b(scalar|avx2|avx512|neon)\b", message)
    assert names[0] == "scalar"
    for name in names:
        assert instruction_set_asked_for(name).stdout == f"{name}\n"


def test_an_engine_does_not_open_with_an_instruction_set_that_is_not_there(toy_path: Path) -> None:
    program = f"from pocketllm import LLM; LLM({str(toy_path)!r}, backend='cpp')"
    environment = {**os.environ, "POCKET_INSTRUCTION_SET": "sse9"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert 'ConfigurationError: POCKET_INSTRUCTION_SET is "sse9"' in done.stderr.splitlines()[-1]


def test_importing_the_package_loads_nothing_native() -> None:
    program = "import pocketllm_cpp, pocketllm_cpp.plugin, sys; print('pocketllm_cpp._native' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


def test_a_checkpoints_architecture_is_told_from_its_headers(toy_path: Path, tmp_path: Path) -> None:
    assert pocketllm_cpp.detect_architecture(toy_path) == "llama"
    assert {"llama", "qwen2", "qwen3", "gemma3_text", "qwen3_5_text"} <= set(pocketllm_cpp.registered_architectures())
    assert not pocketllm_cpp.is_qwen3_5_checkpoint(toy_path)
    assert not pocketllm_cpp.is_qwen3_5_checkpoint(tmp_path / "nothing")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5_moe_text"}))
    assert pocketllm_cpp.is_qwen3_5_checkpoint(tmp_path)
    with pytest.raises(CheckpointError):
        pocketllm_cpp.detect_architecture(tmp_path / "nothing")


def test_generate_is_prefill_and_decode_steps(engine: QwenEngine) -> None:
    result = engine.prefill(PROMPT)
    assert result.position == len(PROMPT)
    assert result.next_token == result.top_tokens[0]
    assert list(result.top_logits) == sorted(result.top_logits, reverse=True)
    assert (result.computed_tokens, result.reused_tokens) == (len(PROMPT), 0)
    tokens = [result.next_token]
    while len(tokens) < 12:
        step = engine.decode_step(tokens[-1])
        tokens.append(step.next_token)
        assert step.position == len(PROMPT) + len(tokens) - 1
    engine.reset()
    assert engine.position == 0
    assert engine.generate(PROMPT, 12) == tokens
    assert engine.position == len(PROMPT) + 11


def test_a_prompt_that_goes_on_is_not_computed_again(engine: QwenEngine) -> None:
    first = engine.prefill(PROMPT)
    assert engine.prefix_cache_stats["resume_source"] == "empty"
    longer = [*PROMPT, first.next_token, 7, 8]
    again = engine.prefill(longer)
    assert again.reused_tokens == len(PROMPT)
    assert engine.prefix_cache_stats["resume_source"] == "live"
    assert engine.prefix_cache_stats["hits"] == 1
    engine.reset()
    assert engine.prefix_cache_stats["hits"] == 0
    fresh = engine.prefill(longer)
    assert fresh.reused_tokens == 0
    assert (fresh.top_tokens, fresh.top_logits) == (again.top_tokens, again.top_logits)


def test_without_prefix_cache_nothing_is_kept(toy_path: Path) -> None:
    engine = QwenEngine(toy_path, QwenEngineOptions(prefix_cache=False, num_threads=1), max_context=128)
    engine.prefill(PROMPT)
    assert engine.prefill([*PROMPT, 7]).reused_tokens == 0


def test_verify_accepts_what_greedy_decoding_would_have_written(engine: QwenEngine) -> None:
    tokens = engine.generate(PROMPT, 8)
    engine.prefill(PROMPT)
    good = engine.verify(tokens[:5])
    assert good.accepted_tokens == tuple(tokens[1:5])
    assert good.next_token == tokens[5]
    assert engine.position == len(PROMPT) + 5
    engine.prefill(PROMPT)
    wrong = [tokens[0], tokens[1], (tokens[2] + 1) % 256, 4]
    partly = engine.verify(wrong)
    assert partly.accepted_tokens == (tokens[1],)
    assert partly.next_token == tokens[2]
    assert engine.position == partly.position == len(PROMPT) + 2
    assert engine.decode_step(tokens[2]).next_token == tokens[3]


def test_sampling_is_repeatable_and_greedy_at_zero(toy_path: Path) -> None:
    def run(seed: int, temperature: float) -> list[int]:
        options = QwenEngineOptions(temperature=temperature, sampling_seed=seed, top_p=0.95, num_threads=1)
        return QwenEngine(toy_path, options, max_context=128).generate(PROMPT, 16)

    assert run(1, 2.0) == run(1, 2.0)
    assert run(1, 2.0) != run(2, 2.0)
    assert run(1, 0.0) == run(2, 0.0)


def test_what_the_engine_says_of_itself(engine: QwenEngine) -> None:
    assert engine.max_context == 512
    assert engine.eos_id in engine.eos_ids
    assert engine.weight_bytes > 0
    assert engine.kv_cache_bytes > 0
    assert engine.state_bytes == 0
    assert engine.kv_paged
    assert engine.config["model_type"] == "llama"
    engine.prefill(PROMPT)
    assert engine.kv_pinned_blocks == 2
    assert engine.kv_free_blocks + engine.kv_pinned_blocks == engine.kv_total_blocks
    engine.warmup_tp()
    assert engine.position == len(PROMPT), "a warm-up leaves a sequence alone"


@pytest.mark.parametrize(
    "changed",
    [
        {"tp_world": 2},
        {"tp_rank": 1},
        {"device": 1},
        {"attention_window": 64},
        {"attention_sink_tokens": 4},
        {"state_snapshot_interval_tokens": 1},
        {"mtp": True},
        {"mtp_adaptive": True},
        {"mtp_speculative_tokens": 3},
        {"dspark_checkpoint": "x"},
        {"dflash2_checkpoint": "x"},
        {"nccl_id_path": "x"},
        {"kv_paged": False},
        {"kv_block_size": 32},
        {"prefix_cache_bytes": 1},
        {"kernel": {"x": 1}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_option_this_build_cannot_honour_is_refused_by_name(toy_path: Path, changed: dict[str, object]) -> None:
    (name,) = changed
    with pytest.raises(UnsupportedFeatureError, match=name) as caught:
        QwenEngine(toy_path, QwenEngineOptions(**changed))  # type: ignore[arg-type]
    assert caught.value.param == name


@pytest.mark.parametrize("dtype", ["Fp8", "TurboQuantK8V4"])
def test_a_cache_type_this_build_lacks_is_refused(toy_path: Path, dtype: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=dtype) as caught:
        QwenEngine(toy_path, QwenEngineOptions(kv_cache_dtype=dtype))
    assert caught.value.param == "kv_cache_dtype"


def test_an_8_bit_cache_is_smaller_and_agrees_nearly(toy_path: Path, engine: QwenEngine) -> None:
    small = QwenEngine(
        toy_path, QwenEngineOptions(kv_cache_dtype="Int8PerTokenHead", max_batch_size=4, num_threads=1), max_context=512
    )
    assert small.kv_cache_bytes < 0.7 * engine.kv_cache_bytes
    exact, near = engine.prefill(PROMPT), small.prefill(PROMPT)
    assert near.top_logits[0] == pytest.approx(exact.top_logits[0], abs=0.5)


@pytest.mark.parametrize(
    "changed, param",
    [
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"top_p": 0.0}, "top_p"),
        ({"temperature": -1.0}, "temperature"),
        ({"activation": "float64"}, "activation"),
    ],
)
def test_an_option_out_of_range_is_refused(toy_path: Path, changed: dict[str, object], param: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        QwenEngine(toy_path, QwenEngineOptions(**changed))  # type: ignore[arg-type]
    assert caught.value.param == param


def test_calls_that_make_no_sense_are_refused(engine: QwenEngine) -> None:
    with pytest.raises(ConfigurationError, match="prefill first"):
        engine.decode_step(3)
    with pytest.raises(ConfigurationError):
        engine.prefill([])
    with pytest.raises(ConfigurationError):
        engine.prefill([10**6])
    with pytest.raises(ConfigurationError):
        engine.prefill([3] * 513)
    with pytest.raises(UnsupportedFeatureError, match="slot_id"):
        engine.prefill([3], slot_id=1)
    with pytest.raises(ConfigurationError, match="max_new_tokens"):
        engine.generate([3], 0)
    with pytest.raises(ConfigurationError, match="max_new_tokens"):
        engine.generate([3] * 500, 14)
    engine.prefill([3] * 512)
    with pytest.raises(ConfigurationError):
        engine.decode_step(3)


def test_an_unsupported_checkpoint_is_refused(tmp_path: Path, toy_path: Path) -> None:
    for file in toy_path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(UnsupportedFeatureError, match="mamba"):
        QwenEngine(tmp_path)


# -- PersistentEngine -----------------------------------------------------------------------------------------------


@pytest.fixture
def session(toy_path: Path) -> PersistentEngine:
    return PersistentEngine(toy_path, ForwardSmokeOptions(num_threads=1, activation="float32"), max_context=256)


def test_a_session_counts_positions_and_agrees_with_the_engine(session: PersistentEngine, engine: QwenEngine) -> None:
    expected = engine.generate(PROMPT, 6)
    tokens = [session.prefill(PROMPT)]
    for offset in range(5):
        assert session.position == len(PROMPT) + offset
        tokens.append(session.decode_step(tokens[-1], len(PROMPT) + offset))
    assert tokens == expected
    with pytest.raises(ConfigurationError, match="position = 3"):
        session.decode_step(5, 3)
    session.reset_session()
    assert session.position == 0


def test_verify_step_is_decode_steps_at_once(session: PersistentEngine) -> None:
    session.prefill(PROMPT)
    draft = [11, 12, 13]
    one_by_one = []
    for token in draft:
        one_by_one.append(session.decode_step(token))
    last = bytes(session.last_logits())
    session.truncate(len(draft))
    assert session.position == len(PROMPT)
    assert session.verify_step(draft, len(PROMPT)) == one_by_one
    assert bytes(session.last_logits()) == last
    assert session.last_topk_tokens[0] == one_by_one[-1]
    assert session.last_topk_logits == sorted(session.last_topk_logits, reverse=True)
    assert len(session.last_logits()) == session.vocab_size
    assert all(map(math.isfinite, session.last_logits()))


def test_a_session_draws_as_it_is_told(session: PersistentEngine) -> None:
    greedy = session.prefill(PROMPT)
    warm = SamplingParams(temperature=3.0, seed=7)
    assert session.prefill(PROMPT, SamplingParams(temperature=3.0, greedy=True)) == greedy
    assert session.prefill(PROMPT, warm) == session.prefill(PROMPT, warm)
    drawn = {session.prefill(PROMPT, SamplingParams(temperature=3.0)) for _ in range(20)}
    assert len(drawn) > 1


def test_more_ranks_than_one_are_refused(toy_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="tp_world"):
        PersistentEngine(toy_path, ForwardSmokeOptions(tp_world=2))


# -- the level below --------------------------------------------------------------------------------------------------


def test_a_session_that_was_replaced_says_so(toy_path: Path) -> None:
    engine = QwenEngine(toy_path, QwenEngineOptions(num_threads=1), max_context=128)
    old = _native.Session(engine._runtime)
    old.prefill(PROMPT)
    _native.Session(engine._runtime)
    with pytest.raises(ConfigurationError, match="new session"):
        old.decode_step(3)


def test_computing_lets_other_threads_run(smollm2_path: Path) -> None:
    engine = QwenEngine(smollm2_path, QwenEngineOptions(num_threads=1), max_context=1024)
    prompt = [(7 * index) % 40000 for index in range(512)]
    ticks = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    started = time.perf_counter()
    engine.prefill(prompt)
    ended = time.perf_counter()
    done.set()
    thread.join()
    assert sum(started < moment < ended for moment in ticks) >= 3
