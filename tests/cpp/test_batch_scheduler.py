"""QwenBatchScheduler: callbacks, polling, limits, and an end that leaves nothing open."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest

from pocketllm.errors import BackendUnavailableError, ConfigurationError
from pocketllm_cpp import (
    QwenBatchSamplingParams,
    QwenBatchScheduler,
    QwenEngine,
    QwenEngineOptions,
    SchedulerGenerationResult,
)

PROMPT = [5, 9, 41, 77, 200, 31, 8, 160]
LONG = QwenBatchSamplingParams(max_new_tokens=400, ignore_eos=True)
SHORT = QwenBatchSamplingParams(max_new_tokens=6, ignore_eos=True)
LIMIT_S = 60


def take(scheduler: QwenBatchScheduler, request_id: int) -> SchedulerGenerationResult:
    result = scheduler.poll_result(request_id, timeout_ms=LIMIT_S * 1000)
    assert result is not None
    return result


def test_callbacks_bring_every_token_and_then_the_result(engine: QwenEngine) -> None:
    expected = engine.generate(PROMPT, 6)
    events: list[tuple[str, object]] = []
    done = threading.Event()

    def on_token(request_id: int, token: int) -> None:
        events.append(("token", (request_id, token)))

    def on_complete(result: SchedulerGenerationResult) -> None:
        events.append(("thread", threading.current_thread().name))
        events.append(("result", result))
        done.set()

    with QwenBatchScheduler(engine, max_batch_size=4) as scheduler:
        assert scheduler.is_running
        request_id = scheduler.submit_request(PROMPT, SHORT, callback=on_complete, on_token=on_token)
        assert request_id > 0
        assert done.wait(LIMIT_S)
    assert [value for kind, value in events if kind == "token"] == [(request_id, token) for token in expected]
    (kind, thread), (last, result) = events[-2:]
    assert (kind, last) == ("thread", "result")
    assert thread != threading.current_thread().name
    assert isinstance(result, SchedulerGenerationResult)
    assert result.generated_tokens == tuple(expected)
    assert (result.finish_reason, result.prompt_tokens, result.completion_tokens) == ("length", len(PROMPT), 6)
    assert 0 <= result.ttft_seconds <= result.total_seconds


def test_many_threads_get_what_each_would_get_alone(engine: QwenEngine) -> None:
    prompts = [[token + index for token in PROMPT] for index in range(12)]
    expected = [engine.generate(prompt, 6) for prompt in prompts]
    results: dict[int, SchedulerGenerationResult] = {}
    with QwenBatchScheduler(engine, max_batch_size=4) as scheduler:

        def run(index: int) -> None:
            results[index] = take(scheduler, scheduler.submit_request(prompts[index], SHORT))

        threads = [threading.Thread(target=run, args=(index,)) for index in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert scheduler.get_stats().completed == len(prompts)
    assert [list(results[index].generated_tokens) for index in range(len(prompts))] == expected


def test_what_runs_can_be_cancelled(engine: QwenEngine) -> None:
    with QwenBatchScheduler(engine, max_batch_size=1) as scheduler:

        def cancelled_at_its_first_token() -> SchedulerGenerationResult:
            begun = threading.Event()
            running = scheduler.submit_request(PROMPT, LONG, on_token=lambda request_id, token: begun.set())
            assert begun.wait(LIMIT_S)
            scheduler.cancel_request(running)
            return take(scheduler, running)

        # The engine needs some milliseconds for all tokens: on a busy machine it may end first, but not every time.
        results = (cancelled_at_its_first_token() for _ in range(20))
        cancelled = next(result for result in results if result.finish_reason == "cancelled")
        assert 0 < len(cancelled.generated_tokens) < LONG.max_new_tokens


def test_polling_gives_none_when_the_time_is_up(engine: QwenEngine) -> None:
    with QwenBatchScheduler(engine, max_batch_size=1) as scheduler:
        # So many go first that the last one's turn cannot come while it is looked at.
        ahead = [scheduler.submit_request(PROMPT, LONG) for _ in range(50)]
        waiting = scheduler.submit_request(PROMPT, LONG)
        assert scheduler.poll_result(waiting, timeout_ms=0) is None
        assert scheduler.poll_result(waiting, timeout_ms=1) is None
        assert scheduler.cancel_request(waiting)
        assert take(scheduler, waiting).finish_reason == "cancelled"
        assert not scheduler.cancel_request(waiting)
        with pytest.raises(ConfigurationError, match="request_id"):
            scheduler.poll_result(waiting)
        for request_id in ahead:
            scheduler.cancel_request(request_id)
            assert take(scheduler, request_id).finish_reason in ("cancelled", "length")
        with pytest.raises(ConfigurationError, match="request_id"):
            scheduler.poll_result(12345)


def test_what_a_callback_raises_goes_to_stderr_and_no_further(
    engine: QwenEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a fault of the caller's own")

    with QwenBatchScheduler(engine, max_batch_size=2) as scheduler:
        scheduler.submit_request(PROMPT, SHORT, callback=fail, on_token=fail)
        other = scheduler.submit_request(PROMPT, SHORT)
        assert take(scheduler, other).finish_reason == "length"
        assert scheduler.is_running
    shown = capfd.readouterr().err
    assert shown.count("RuntimeError: a fault of the caller's own") == 7


def test_a_stop_id_ends_a_request_and_is_its_last_token(engine: QwenEngine) -> None:
    expected = engine.generate(PROMPT, 6)
    stop = expected[3]
    first = expected.index(stop)
    with QwenBatchScheduler(engine) as scheduler:
        params = QwenBatchSamplingParams(max_new_tokens=6, stop_token_ids=[stop], ignore_eos=True)
        result = take(scheduler, scheduler.submit_request(PROMPT, params))
    assert result.finish_reason == "stop"
    assert result.generated_tokens == tuple(expected[: first + 1])
    assert result.answer_tokens == tuple(expected[:first])
    assert result.completion_tokens == first + 1


def test_the_batch_size_is_clamped_to_the_engines_slots(engine: QwenEngine, toy_path: Path) -> None:
    with QwenBatchScheduler(engine, max_batch_size=100) as scheduler:
        caps = scheduler.engine_caps()
        assert scheduler.max_batch_size() == caps.max_slots == 4
        assert caps.continuous_batching
        assert caps.chunked_prefill
        assert caps.paged_kv
        assert caps.per_request_sampling
        assert caps.per_request_top_k
    single = QwenEngine(toy_path, QwenEngineOptions(num_threads=1), max_context=128)
    with QwenBatchScheduler(single, max_batch_size=4) as scheduler:
        assert scheduler.max_batch_size() == 1
    with pytest.raises(ConfigurationError, match="max_batch_size"):
        QwenBatchScheduler(single, max_batch_size=0)


@pytest.mark.parametrize("budget", [0, 1, 16, 512])
def test_the_prefill_budget_changes_nothing_but_the_schedule(engine: QwenEngine, budget: int) -> None:
    prompt = PROMPT * 12
    expected = engine.generate(prompt, 6)
    with QwenBatchScheduler(engine) as scheduler:
        scheduler.set_prefill_token_budget(budget)
        assert scheduler.prefill_token_budget == budget
        assert list(take(scheduler, scheduler.submit_request(prompt, SHORT)).generated_tokens) == expected
        with pytest.raises(ConfigurationError):
            scheduler.set_prefill_token_budget(-1)


def test_a_budget_beyond_the_context_is_cut(engine: QwenEngine) -> None:
    with QwenBatchScheduler(engine) as scheduler:
        params = QwenBatchSamplingParams(max_new_tokens=10**6, ignore_eos=True)
        result = take(scheduler, scheduler.submit_request([3] * 500, params))
        assert (result.finish_reason, result.completion_tokens) == ("length", 12)
        for prompt in ([], [3] * 512, [10**6]):
            with pytest.raises(ConfigurationError):
                scheduler.submit_request(prompt, params)


def test_stopping_cancels_what_runs_and_gives_the_engine_back(engine: QwenEngine) -> None:
    expected = engine.generate(PROMPT, 6)
    results: list[SchedulerGenerationResult] = []
    scheduler = QwenBatchScheduler(engine, max_batch_size=2)
    with pytest.raises(ConfigurationError):
        engine.prefill(PROMPT)
    with pytest.raises(ConfigurationError, match="stop it first"):
        QwenBatchScheduler(engine)
    for _ in range(6):
        scheduler.submit_request(PROMPT, LONG, callback=results.append)
    polled = scheduler.submit_request(PROMPT, LONG)
    scheduler.stop()
    scheduler.stop()
    assert not scheduler.is_running
    assert len(results) == 6
    assert {result.finish_reason for result in results} <= {"cancelled", "length"}
    assert take(scheduler, polled).finish_reason in ("cancelled", "length")
    with pytest.raises(BackendUnavailableError):
        scheduler.submit_request(PROMPT, SHORT)
    stats = scheduler.get_stats()
    assert (stats.running, stats.waiting, stats.free_slots) == (0, 0, 2)
    assert engine.generate(PROMPT, 6) == expected


def test_a_callback_may_stop_the_scheduler(engine: QwenEngine) -> None:
    scheduler = QwenBatchScheduler(engine)
    scheduler.submit_request(PROMPT, LONG, on_token=lambda request_id, token: scheduler.stop())
    scheduler._thread.join(LIMIT_S)
    assert not scheduler._thread.is_alive()
    assert not scheduler.is_running
    assert engine.prefill(PROMPT).position == len(PROMPT)


def test_the_scheduler_keeps_its_engine(toy_path: Path) -> None:
    engine = QwenEngine(toy_path, QwenEngineOptions(num_threads=1), max_context=128)
    gone = weakref.ref(engine)
    scheduler = QwenBatchScheduler(engine)
    del engine
    gc.collect()
    assert gone() is not None
    result = take(scheduler, scheduler.submit_request(PROMPT, SHORT))
    assert result.completion_tokens == 6
    scheduler.stop()
    del scheduler
    gc.collect()
    assert gone() is None
