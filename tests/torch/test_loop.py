"""The engine behind its hooks: streams, limits, cancellation, preemption, choices, failure and close."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
import torch

from pocketllm.engine.call import GenerateCall
from pocketllm.errors import BackendUnavailableError, UnsupportedFeatureError
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Choice, Constraint, GenerationRequest, TokenFlag
from pocketllm_torch.engine.inbox import Arrival
from pocketllm_torch.engine.plan import StepPlan
from pocketllm_torch.engine.runner import Runner
from pocketllm_torch.engine.sampler import Sampler
from pocketllm_torch.engine.scheduler import Scheduler
from pocketllm_torch.engine.step import StepInput, StepOutput
from pocketllm_torch.layers.caches import Caches
from tests.torch.driving import LIMIT_S, Driver, Stream
from tests.torch.tiny_llama import TinyLlama, random_ids


def settle(driver: Driver) -> None:
    """Every slot and block is free again."""
    stats = driver.engine.pocketllm_stats()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.num_free_slots == stats.num_slots
    assert stats.num_free_blocks == stats.num_blocks


def test_greedy_tokens_are_those_of_transformers(driver: Driver, tiny: TinyLlama) -> None:
    prompt = random_ids(20, seed=1)
    stream = driver.run(prompt, max_tokens=12)
    assert stream.tokens == tiny.greedy(prompt, 12)
    assert stream.reason == "length"
    assert stream.flags == [0] * 12
    assert stream.prompt is not None
    settle(driver)


def test_many_requests_at_once_each_get_their_own_text(driver: Driver, tiny: TinyLlama) -> None:
    prompts = [
        random_ids(length, seed=length) for length in (1, 3, 17, 40, 90, 16, 200, 33, 5, 64, 7, 21, 50, 2, 9, 80)
    ]
    prompts += [random_ids(30, seed=300 + index) for index in range(8)]
    streams = [driver.submit(prompt, max_tokens=5 + index % 7)[0] for index, prompt in enumerate(prompts)]
    driver.wait()
    for index, (prompt, stream) in enumerate(zip(prompts, streams, strict=True)):
        assert stream.tokens == tiny.greedy(prompt, 5 + index % 7)
    assert driver.engine.pocketllm_stats().num_generated_tokens == sum(len(stream.tokens) for stream in streams)
    settle(driver)


def test_a_stop_id_is_flagged_and_ends_the_stream(driver: Driver, tiny: TinyLlama) -> None:
    prompt = random_ids(20, seed=1)
    expected = tiny.greedy(prompt, 12)
    stop = next(token for index, token in enumerate(expected) if index > 2 and token not in expected[:index])
    stream = driver.run(prompt, max_tokens=12, stop_ids=(stop,), logprobs=True)
    end = expected.index(stop) + 1
    assert stream.tokens == expected[:end]
    assert stream.flags == [0] * (end - 1) + [TokenFlag.STOP]
    assert stream.reason == "stop"
    assert len(stream.logprobs) == end - 1


def test_logprobs_are_raw_under_every_sampling(driver: Driver, tiny: TinyLlama) -> None:
    prompt = random_ids(10, seed=2)
    stream = driver.run(
        prompt, logprobs=True, top_logprobs=3, temperature=1.7, top_k=5, repetition_penalty=1.3, logit_bias={9: 2.0}
    )
    reference = torch.log_softmax(tiny.logits(prompt + stream.tokens), -1)
    assert len(stream.logprobs) == 8
    for index, entry in enumerate(stream.logprobs):
        row = reference[len(prompt) - 1 + index]
        assert entry.logprob == pytest.approx(float(row[stream.tokens[index]]), abs=1e-4)
        assert [token for token, _ in entry.top] == row.argsort(descending=True)[:3].tolist()


def test_prompt_logprobs_come_with_the_first_token(tiny: TinyLlama) -> None:
    prompt = random_ids(50, seed=3)
    reference = torch.log_softmax(tiny.logits(prompt), -1)
    with Driver.open(tiny.path, dtype="float32", prefill_chunk_tokens=16) as driver:
        streams = driver.submit(prompt, prompt_logprobs=True, logprobs=True, top_logprobs=2, n=2)
        driver.wait()
    for stream in streams:
        assert stream.prompt is not None
        assert [entry.row for entry in stream.prompt.logprobs] == list(range(1, 50))
        for entry in stream.prompt.logprobs:
            assert entry.logprob == pytest.approx(float(reference[entry.row - 1, prompt[entry.row]]), abs=1e-4)
            assert len(entry.top) == 2


def test_seeds_are_reproducible_alone_and_in_company(driver: Driver) -> None:
    prompt = random_ids(12, seed=4)
    alone = driver.run(prompt, temperature=1.0, seed=77, max_tokens=20).tokens
    others = [driver.submit(random_ids(30, seed=50 + index), temperature=1.0, seed=index)[0] for index in range(6)]
    again, other = driver.submit(prompt, temperature=1.0, seed=77, max_tokens=20, n=2)
    driver.wait()
    assert again.tokens == alone
    assert other.tokens != alone
    assert all(stream.reason == "length" for stream in others)


def test_choices_share_a_prefill_and_equal_single_requests(driver: Driver) -> None:
    prompt = random_ids(37, seed=5)
    before = driver.engine.pocketllm_stats().num_prompt_tokens
    choices = driver.submit(prompt, n=4, temperature=1.0, seed=10, max_tokens=10)
    driver.wait()
    assert driver.engine.pocketllm_stats().num_prompt_tokens - before == len(prompt)
    singles = [driver.run(prompt, temperature=1.0, seed=10 + index, max_tokens=10).tokens for index in range(4)]
    assert [stream.tokens for stream in choices] == singles
    assert len({tuple(tokens) for tokens in singles}) > 1
    settle(driver)


def test_more_choices_than_slots_wait_their_turn(tiny: TinyLlama) -> None:
    prompt = random_ids(20, seed=6)
    with Driver.open(tiny.path, dtype="float32", max_batch_size=2) as driver:
        streams = driver.submit(prompt, n=5, max_tokens=4)
        driver.wait()
        settle(driver)
    assert [stream.tokens for stream in streams] == [tiny.greedy(prompt, 4)] * 5


def test_preemption_changes_no_token(tiny: TinyLlama) -> None:
    """A cache of 14 blocks for four sequences that want 6 each."""
    prompts = [random_ids(30 + 3 * index, seed=60 + index) for index in range(4)]
    params: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "seed": 3},
        {"repetition_penalty": 1.4},
        {"logprobs": True},
    ]
    options = {"kv_cache_bytes": 14 * 3 * 16 * 2 * 2 * 16 * 4}
    with Driver.open(tiny.path, dtype="float32", max_model_len=128, options=options) as driver:
        assert driver.engine.pocketllm_stats().num_blocks == 14
        alone = [driver.run(prompt, max_tokens=60, **kind) for prompt, kind in zip(prompts, params, strict=True)]
        assert driver.engine.pocketllm_stats().num_preemptions == 0
        together = [
            driver.submit(prompt, max_tokens=60, **kind)[0] for prompt, kind in zip(prompts, params, strict=True)
        ]
        driver.wait()
        assert driver.engine.pocketllm_stats().num_preemptions > 0
        settle(driver)
    assert [stream.tokens for stream in together] == [stream.tokens for stream in alone]


def mixed_params(index: int) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": index},
        {"temperature": 1.2, "top_p": 0.9, "top_k": 40, "seed": index},
        {"presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"n": 2, "temperature": 1.0, "seed": index},
    ]
    return {**kinds[index % len(kinds)], "logprobs": True, "top_logprobs": 2}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_deterministic_mode_is_batch_invariant_bit_for_bit(tiny: TinyLlama, dtype: str) -> None:
    """Tokens and log probabilities alone equal those in a crowd, with preemption, to the last bit."""
    prompts = [random_ids(3 + 13 * index % 70, seed=80 + index) for index in range(10)]
    options = {"deterministic": True, "kv_cache_bytes": 26 * 3 * 16 * 2 * 2 * 16 * (2 if dtype == "bfloat16" else 4)}
    args = {"dtype": dtype, "max_model_len": 160, "prefill_chunk_tokens": 32, "max_batch_size": 8}
    with Driver.open(tiny.path, options=options, **args) as driver:
        assert driver.engine.pocketllm_capabilities().batch_invariant
        alone: list[Stream] = []
        for index, prompt in enumerate(prompts):
            alone += driver.submit(prompt, max_tokens=40, **mixed_params(index))
            driver.wait()
        together: list[Stream] = []
        for index, prompt in enumerate(prompts):
            together += driver.submit(prompt, max_tokens=40, **mixed_params(index))
            driver.read()
        driver.wait()
        assert driver.engine.pocketllm_stats().num_preemptions > 0
    assert [stream.tokens for stream in together] == [stream.tokens for stream in alone]
    for crowded, single in zip(together, alone, strict=True):
        assert [(e.logprob, e.top) for e in crowded.logprobs] == [(e.logprob, e.top) for e in single.logprobs]


def test_priority_overtakes_the_queue(tiny: TinyLlama) -> None:
    with Driver.open(tiny.path, dtype="float32", enable_batching=False) as driver:
        assert driver.engine.pocketllm_capabilities().max_batch_size == 1
        (first,) = driver.submit(random_ids(5, seed=1), max_tokens=300)
        driver.wait_for_tokens(first, 1)
        (low,) = driver.submit(random_ids(5, seed=2), max_tokens=3)
        (high,) = driver.submit(random_ids(5, seed=3), max_tokens=3, priority=1)
        driver.wait()
        order = [finish.handle for batch in driver.batches for finish in batch.finished]
    assert order == [first.handle, high.handle, low.handle]


# ------------------------------------------------------------------------------------------------------ cancellation


def test_a_running_stream_can_be_cancelled(driver: Driver) -> None:
    (stream,) = driver.submit(random_ids(5, seed=1), max_tokens=400)
    (other,) = driver.submit(random_ids(6, seed=2), max_tokens=30)
    driver.wait_for_tokens(stream, 3)
    driver.cancel(stream)
    driver.cancel(stream)
    driver.wait()
    assert stream.reason == "cancelled"
    assert len(stream.tokens) < 400
    assert other.reason == "length"
    assert len(other.tokens) == 30
    settle(driver)


def test_cancelling_what_waits_and_what_is_unknown(tiny: TinyLlama) -> None:
    with Driver.open(tiny.path, dtype="float32", enable_batching=False) as driver:
        (running,) = driver.submit(random_ids(5, seed=1), max_tokens=200)
        waiting = driver.submit(random_ids(5, seed=2), n=3)
        driver.cancel(waiting[1])
        driver.cancel(Stream(999_999))
        driver.wait(waiting[1])
        assert waiting[1].reason == "cancelled"
        assert waiting[1].tokens == []
        driver.cancel(running)
        driver.wait()
        assert {stream.reason for stream in (waiting[0], waiting[2])} == {"length"}
        driver.cancel(running)
        driver.run(random_ids(5, seed=3))
        settle(driver)


@pytest.mark.parametrize("seed", range(8))
def test_cancellation_at_any_moment_leaks_nothing(tiny: TinyLlama, seed: int) -> None:
    """Random requests, cancelled from another thread at random moments, on a small cache."""
    rng = random.Random(seed)
    options = {"kv_cache_bytes": 20 * 3 * 16 * 2 * 2 * 16 * 4}
    with Driver.open(tiny.path, dtype="float32", max_model_len=200, options=options, prefill_chunk_tokens=16) as driver:
        streams: list[Stream] = []
        for _ in range(12):
            length = rng.randint(1, 120)
            streams += driver.submit(
                random_ids(length, seed=rng.randint(0, 999)), max_tokens=rng.randint(1, 60), n=rng.choice((1, 1, 2, 3))
            )
        victims = rng.sample(streams, len(streams) // 2)

        def cancel_all() -> None:
            for stream in victims:
                time.sleep(rng.random() * 0.004)
                driver.cancel(stream)

        thread = threading.Thread(target=cancel_all)
        thread.start()
        driver.wait()
        thread.join()
        for stream in streams:
            assert stream.reason == "length" or (stream in victims and stream.reason == "cancelled")
        settle(driver)


# ------------------------------------------------------------------------------------------------- failure and close


def test_a_failing_step_ends_its_streams_and_spares_the_engine(
    driver: Driver, tiny: TinyLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Runner.execute
    failures = iter([True])

    def failing(self: Runner, step: StepInput) -> StepOutput:
        if next(failures, False):
            raise RuntimeError("a kernel failed")
        return execute(self, step)

    monkeypatch.setattr(Runner, "execute", failing)
    (stream,) = driver.submit(random_ids(5, seed=1))
    driver.wait()
    assert stream.finish is not None
    assert stream.finish.reason == "error"
    assert stream.finish.error == "RuntimeError: a kernel failed"
    prompt = random_ids(5, seed=2)
    assert driver.run(prompt).tokens == tiny.greedy(prompt, 8)
    assert all(batch.fatal is None for batch in driver.batches)
    settle(driver)


def test_failing_again_and_again_is_fatal(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Runner, step: StepInput) -> StepOutput:
        raise RuntimeError("broken for good")

    monkeypatch.setattr(Runner, "execute", failing)
    for seed in range(3):
        stream = driver.run(random_ids(5, seed=seed))
        assert stream.reason == "error"
    assert [batch.fatal for batch in driver.batches if batch.fatal] == [
        "The engine stopped after a failed step: RuntimeError: broken for good"
    ]
    with pytest.raises(BackendUnavailableError, match="broken for good"):
        driver.submit(random_ids(5, seed=9))


def test_a_fault_of_the_loop_itself_ends_every_stream(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = driver.submit(random_ids(5, seed=1), max_tokens=400)
    driver.wait_for_tokens(first, 1)

    def failing(self: Scheduler, drafts: object) -> StepPlan:
        raise RuntimeError("lost count")

    monkeypatch.setattr(Scheduler, "schedule", failing)
    driver.wait()
    assert first.finish is not None
    assert first.finish.error == "RuntimeError: lost count"
    assert driver.batches[-1].fatal == "The engine's loop failed: RuntimeError: lost count"
    with pytest.raises(BackendUnavailableError, match="lost count"):
        driver.submit(random_ids(5, seed=2))


@pytest.mark.parametrize("part, method", [(Sampler, "sample"), (Caches, "copy_block")])
def test_a_failure_while_choices_fork_ends_them_all(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, part: type, method: str
) -> None:
    """Where the followers are sampled for the first time, and where they get their copies a step later."""

    def failing(*arguments: object, **options: object) -> None:
        raise RuntimeError("no fork")

    monkeypatch.setattr(part, method, failing)
    streams = driver.submit(random_ids(5, seed=1), n=3)
    driver.wait()
    assert [stream.reason for stream in streams] == ["error"] * 3
    settle(driver)


def test_close_ends_everything_that_was_accepted(tiny: TinyLlama) -> None:
    driver = Driver.open(tiny.path, dtype="float32", max_batch_size=2)
    streams = [driver.submit(random_ids(5, seed=seed), max_tokens=400)[0] for seed in range(5)]
    driver.wait_for_tokens(streams[0], 1)
    driver.engine.pocketllm_close(LIMIT_S)
    driver.read()
    assert [stream.reason for stream in streams] == ["cancelled"] * 5
    driver.engine.pocketllm_close(LIMIT_S)
    with pytest.raises(BackendUnavailableError, match="closed"):
        driver.submit(random_ids(5, seed=9))
    settle(driver)
    driver.engine.events.close()


def test_a_request_accepted_just_before_close_gets_its_end(tiny: TinyLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """It arrives after the engine's thread has looked for messages, and close() comes before it looks again."""
    driver = Driver.open(tiny.path, dtype="float32")
    engine = driver.engine
    inbox, loop = engine._inbox, engine._loop
    take = inbox.take
    late: list[Stream] = []
    armed = threading.Event()

    def take_and_be_overtaken() -> list[Arrival | int]:
        messages = take()
        if armed.is_set() and not late:
            late.extend(driver.submit(random_ids(4, 1)))
            inbox.close()
        return messages

    monkeypatch.setattr(inbox, "take", take_and_be_overtaken)
    armed.set()
    inbox.cancel(driver.submit(random_ids(4, 2))[0].handle)
    assert loop.join(LIMIT_S)
    driver.read()
    assert late[0].reason == "cancelled"
    engine.pocketllm_close(LIMIT_S)
    engine.events.close()


def test_close_does_not_wait_for_a_step_that_hangs(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    execute = Runner.execute

    def hanging(self: Runner, step: StepInput) -> StepOutput:
        release.wait(LIMIT_S)
        return execute(self, step)

    monkeypatch.setattr(Runner, "execute", hanging)
    (stream,) = driver.submit(random_ids(5, seed=1))
    driver.engine.pocketllm_close(0.05)
    driver.read()
    assert stream.reason == "cancelled"
    release.set()
    driver.engine.pocketllm_close(LIMIT_S)
    driver.read()
    assert stream.tokens == []


def test_a_constraint_without_a_tokenizer_is_refused_and_nothing_follows(driver: Driver) -> None:
    request = GenerationRequest(
        prompt_tokens=(1,),
        sampling_params=SamplingParams(max_tokens=1),
        choices=(Choice(1, 0),),
        constraint=Constraint(kind="json_object", text=""),
    )
    with pytest.raises(UnsupportedFeatureError) as refusal:
        driver.engine.pocketllm_generate(GenerateCall(request))
    assert refusal.value.param == "response_format"
    driver.run(random_ids(5, seed=1))
    assert {handle for batch in driver.batches for handle in batch.handles} == {1}
    settle(driver)
