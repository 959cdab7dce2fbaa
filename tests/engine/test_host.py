"""The host: states, admission, events to readers, cancellation, failure and restart."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest

from pocketllm.engine.call import GenerateCall
from pocketllm.errors import (
    BackendUnavailableError,
    CheckpointError,
    ConfigurationError,
    ContextLengthError,
    DeadlineExceededError,
    DuplicateRequestError,
    EngineError,
    QueueFullError,
    RequestCancelledError,
    SlowReaderError,
    UnsupportedFeatureError,
)
from pocketllm.hookspecs import hookimpl
from pocketllm.host.state import HostLimits, HostState
from pocketllm.prompt.builder import Prepared
from pocketllm.protocol import prompt_requests
from pocketllm.sampling_params import SamplingParams
from pocketllm.text.reasoning import ReasoningMode
from pocketllm.types import (
    CancelReason,
    Capabilities,
    Finish,
    GenerationRequest,
    PromptReport,
    StepBatch,
    TokenLogprob,
)
from tests.engine.manual_engine import FULL, DrivenHost, ManualBackend


def test_tokens_become_text_and_usage(driven: DrivenHost) -> None:
    reader = driven.submit("hello")
    ids = driven.ids("wörld!")
    driven.engine.post(reader.handle, *ids)
    events = reader.take()
    assert [event.text for event in events] == ["wörld!"]
    assert events[0].token_ids == tuple(ids)
    assert events[0].finish_reason is None
    driven.engine.post_stop(reader.handle, driven.engine.requests[0].stop_token_ids[0])
    (last,) = reader.take()
    assert last.finish_reason == "stop"
    assert last.text == ""
    assert last.token_ids == ()
    assert last.usage is not None
    assert last.usage.prompt_tokens == len(driven.ids("hello"))
    assert last.usage.completion_tokens == len(ids) + 1
    assert reader.record.result().token_ids == tuple(ids)
    assert driven.host.num_active == 0


def test_a_slow_reader_gets_merged_deltas_and_one_wake_per_drain(driven: DrivenHost) -> None:
    reader = driven.submit()
    for token in driven.ids("abc"):
        driven.engine.post(reader.handle, token)
    driven.drain()
    assert reader.num_wakes == 1
    driven.engine.post(reader.handle, *driven.ids("def"))
    driven.drain()
    assert [event.text for event in reader.take()] == ["abcdef"]


def test_two_readers_see_the_same_and_late_ones_start_from_the_beginning(driven: DrivenHost) -> None:
    reader = driven.submit()
    driven.engine.post(reader.handle, *driven.ids("abc"))
    assert [event.text for event in reader.take()] == ["abc"]
    late = reader.record.subscribe(lambda: None)
    driven.engine.post(reader.handle, *driven.ids("d"))
    driven.engine.finish(reader.handle, "length")
    driven.drain()
    assert [event.text for event in late.take()] == ["abcd"]
    assert [event.text for event in reader.take()] == ["d"]
    assert late.at_end


def test_choices_share_a_request_and_end_one_by_one(driven: DrivenHost) -> None:
    reader = driven.submit(n=3, temperature=1.0, seed=7)
    assert [choice.seed for choice in driven.engine.requests[0].choices] == [7, 8, 9]
    first, second, third = reader.handles
    driven.engine.post(first, *driven.ids("one"))
    driven.engine.post(third, *driven.ids("three"))
    assert {event.choice_index: event.text for event in reader.take()} == {0: "one", 2: "three"}
    driven.engine.finish(third, "length")
    driven.engine.post(second, *driven.ids("two"))
    events = reader.take()
    assert [(event.choice_index, event.finish_reason) for event in events] == [(1, None), (2, "length")]
    assert all(event.usage is None for event in events)
    driven.engine.finish(first, "length")
    driven.engine.finish(second, "stop")
    events = reader.take()
    assert events[-1].usage is not None
    result = reader.record.result()
    assert [choice.text for choice in result.choices] == ["one", "two", "three"]
    assert result.usage.completion_tokens == sum(len(driven.ids(text)) for text in ("one", "two", "three"))


def test_a_stop_string_ends_the_engines_work_and_the_count(driven: DrivenHost) -> None:
    reader = driven.submit(stop=("STOP",), logprobs=True)
    ids = driven.ids("ab STO")
    driven.engine.post(reader.handle, *ids, logprob=-1.0)
    assert "".join(event.text for event in reader.take()) == "ab "
    rest = driven.ids("P and more")
    driven.engine.post(reader.handle, *rest, logprob=-1.0)
    events = reader.take()
    assert [event.text for event in events] == [""]
    assert events[0].finish_reason == "stop"
    assert (reader.handle, "stop_string") in driven.engine.cancelled
    assert events[0].metadata == {"stop_sequence": "STOP"}
    result = reader.record.result()
    assert result.choices[0].stop_sequence == "STOP"
    assert result.text == "ab "
    assert result.logprobs is not None
    assert "".join(entry.token for entry in result.logprobs) == "ab "
    assert len(result.logprobs) == len(result.token_ids)
    # Up to and including the token that completed the match, whatever the engine ran past it.
    assert result.usage.completion_tokens == len(driven.ids("ab STO")) + 1
    assert driven.host.num_active == 0


def test_stop_is_for_the_answer_and_not_for_reasoning(driven: DrivenHost) -> None:
    text = "<think>a STOP b</think>c STOP d"
    request = GenerationRequest(prompt="x", sampling_params=SamplingParams(stop=("STOP",)))
    prepared = driven.host.prepare(request)
    record = driven.host.submit(request, Prepared(prepared.request, ReasoningMode.AUTO, prepared.stops))
    driven.engine.post(record.request.choices[0].handle, *driven.ids(text))
    driven.drain()
    result = record.result()
    assert result.reasoning_content == "a STOP b"
    assert result.text == "c "
    assert result.finish_reason == "stop"


def test_held_text_is_flushed_at_the_end(driven: DrivenHost) -> None:
    reader = driven.submit(stop=("STOP",))
    driven.engine.post(reader.handle, *driven.ids("a STO"))
    driven.engine.finish(reader.handle, "length")
    assert "".join(event.text for event in reader.take()) == "a STO"
    assert reader.record.result().token_ids == tuple(driven.ids("a STO"))


def test_log_probabilities_have_exact_bytes(driven: DrivenHost) -> None:
    reader = driven.submit(logprobs=True, top_logprobs=1)
    ids = driven.ids("é")
    batch_rows = [TokenLogprob(row, -0.5, [(token, -0.5)]) for row, token in enumerate(ids)]
    driven.engine.events.post(
        StepBatch(handles=[reader.handle] * len(ids), tokens=ids, flags=[0] * len(ids), logprobs=batch_rows)
    )
    driven.engine.finish(reader.handle, "length")
    driven.drain()
    entries = reader.record.result().logprobs
    assert entries is not None
    assert bytes(byte for entry in entries for byte in entry.bytes) == "é".encode()
    assert all(entry.top_logprobs[0].token_id == entry.token_id for entry in entries)


def test_cancel_waits_for_the_engine_and_answers_once(driven: DrivenHost) -> None:
    reader = driven.submit()
    driven.engine.post(reader.handle, *driven.ids("ab"))
    driven.drain()
    assert driven.host.cancel(reader.record.request_id)
    assert not driven.host.cancel(reader.record.request_id)
    events = reader.take()
    assert events[-1].finish_reason == "cancelled"
    assert "".join(event.text for event in events) == "ab"
    assert not driven.host.cancel(reader.record.request_id)
    with pytest.raises(RequestCancelledError):
        reader.record.result()


def test_an_engine_that_is_deaf_to_cancel_cannot_hold_a_caller(driven: DrivenHost) -> None:
    driven.engine.deaf = True
    reader = driven.submit()
    assert driven.host.cancel(reader.record.request_id)
    driven.drain_until(lambda: reader.record.finished)
    assert reader.take()[-1].finish_reason == "cancelled"
    driven.engine.post(reader.handle, 5)  # a late event reaches nobody
    assert reader.take() == []


def test_an_engine_that_hangs_is_replaced(driven: DrivenHost) -> None:
    driven.engine.deaf = True
    hung = driven.submit()
    other = driven.submit()
    assert driven.host.cancel(hung.record.request_id)
    driven.drain_until(lambda: driven.host.epoch == 2)
    assert hung.take()[-1].finish_reason == "cancelled"
    assert "it hangs" in (other.take()[-1].error or "")


def test_a_reader_that_only_waits_for_the_result_is_never_cut(driven: DrivenHost) -> None:
    record = driven.host.submit(GenerationRequest(prompt="x"))
    waiting = record.subscribe(lambda: None, max_unread_deltas=3)
    waiting.wait_for_end()
    for _ in range(10):
        driven.engine.post(record.request.choices[0].handle, *driven.ids("a"))
        driven.drain()
    assert not waiting.cut
    driven.engine.finish(record.request.choices[0].handle, "length")
    driven.drain()
    assert record.result().text == "a" * 10


def test_leaving_wakes_whoever_waits(driven: DrivenHost) -> None:
    reader = driven.submit()
    before = reader.num_wakes
    reader.subscription.close()
    assert reader.num_wakes == before + 1
    assert reader.subscription.at_end


@pytest.mark.parametrize(
    "batch",
    [
        StepBatch(handles=[1], tokens=[5], flags=[]),
        StepBatch(handles=[1], tokens=[], flags=[0]),
        StepBatch(prompts=[PromptReport(handle=1, logprobs=[TokenLogprob(99, -1.0)])]),
    ],
)
def test_a_malformed_batch_fails_the_engine_and_not_the_pump(driven: DrivenHost, batch: StepBatch) -> None:
    reader = driven.submit()
    handles = [reader.handle] * len(batch.handles)
    prompts = [msgspec.structs.replace(report, handle=reader.handle) for report in batch.prompts]
    driven.engine.events.post(msgspec.structs.replace(batch, handles=handles, prompts=prompts))
    driven.drain()
    assert reader.take()[-1].finish_reason == "error"
    driven.drain_until(lambda: driven.host.epoch == 2)


def test_an_engine_that_raises_in_cancel_harms_nobody(driven: DrivenHost, caplog: pytest.LogCaptureFixture) -> None:
    reader = driven.submit(stop=("b",))
    driven.engine.cancelled = None  # type: ignore[assignment]  # makes its pocketllm_cancel raise
    driven.engine.post(reader.handle, *driven.ids("ab"))
    assert reader.take()[-1].finish_reason == "stop"
    assert "The engine raised in pocketllm_cancel" in caplog.text


@pytest.mark.parametrize("failure", [SystemExit("no GPU"), KeyboardInterrupt(), RuntimeError("boom")])
def test_whatever_an_open_raises_the_host_says_so(
    toy_path: Path, backend: ManualBackend, failure: BaseException
) -> None:
    backend.failures.append(failure)
    with DrivenHost(toy_path, backend, wait=False) as driven:
        with pytest.raises(EngineError, match="Loading failed"):
            driven.host.wait_ready(20)
        with pytest.raises(BackendUnavailableError, match="could not be loaded"):
            driven.submit()


def test_an_engine_without_an_event_source_is_refused(toy_path: Path, backend: ManualBackend) -> None:
    backend.without_events = True
    with DrivenHost(toy_path, backend, wait=False) as driven:
        with pytest.raises(EngineError, match="event source"):
            driven.host.wait_ready(20)
        assert driven.engine.closed


class Quiet:
    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> None:
        return None


def test_an_extension_may_have_any_name(toy_path: Path, backend: ManualBackend) -> None:
    with DrivenHost(toy_path, backend, extensions={"engine": Quiet(), "gate": Quiet()}) as driven:
        assert driven.submit("hello").record.num_prompt_tokens == len(driven.ids("hello"))


def test_cancelling_while_the_hook_runs_leaves_no_timer_behind(driven: DrivenHost) -> None:
    def generate(call: GenerateCall) -> bool:
        driven.host.cancel("mine")
        driven.engine.finish(call.request.choices[0].handle, "stop")
        driven.drain()
        return True

    driven.engine.on_generate = generate
    reader = driven.submit_request(GenerationRequest(prompt="x", request_id="mine"))
    assert reader.record.finished
    assert driven.host.next_timer() is None


def test_an_engine_lost_during_the_hook_refuses_the_request(toy_path: Path, backend: ManualBackend) -> None:
    class LosesTheEngine:
        @hookimpl
        def pocketllm_generate(self, call: GenerateCall) -> None:
            driven.host.fail("lost")

    with DrivenHost(toy_path, backend, extensions={"loses": LosesTheEngine()}) as driven:
        with pytest.raises(BackendUnavailableError, match="was lost"):
            driven.submit()
        assert driven.host.num_active == 0


class Watchdog:
    """Watches over the engine from outside."""

    def __init__(self) -> None:
        self.answer: str | BaseException | None = None

    @hookimpl
    def pocketllm_heartbeat(self) -> str | None:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_a_heartbeat_that_says_why_ends_every_request_and_opens_another_engine(
    toy_path: Path, backend: ManualBackend
) -> None:
    watchdog = Watchdog()
    with DrivenHost(toy_path, backend, extensions={"watchdog": watchdog}) as driven:
        reader = driven.submit()
        watchdog.answer = "The device is gone."
        driven.drain_until(lambda: reader.record.finished)
        with pytest.raises(EngineError, match="The device is gone"):
            reader.record.result()
        watchdog.answer = None
        driven.drain_until(lambda: driven.host.state is HostState.READY)
        assert driven.host.epoch == 2


def test_a_heartbeat_that_raises_is_logged_and_says_nothing_of_the_engine(
    toy_path: Path, backend: ManualBackend, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog = Watchdog()
    watchdog.answer = ValueError("oops")
    with DrivenHost(toy_path, backend, extensions={"watchdog": watchdog}) as driven:
        driven.drain_until(lambda: "raised in pocketllm_heartbeat" in caplog.text)
        assert driven.host.epoch == 1
        assert "Plugin 'watchdog'" in caplog.text


def test_no_heartbeat_is_asked_where_nobody_has_one(driven: DrivenHost) -> None:
    assert driven.host.next_timer() is None


def test_draining_while_loading_never_becomes_ready(toy_path: Path, backend: ManualBackend) -> None:
    backend.may_open.clear()
    with DrivenHost(toy_path, backend, wait=False) as driven:
        driven.drain_until(lambda: driven.host.progress[0] == "weights")
        driven.host.begin_drain()
        backend.may_open.set()
        driven.drain_until(lambda: bool(backend.opened) and backend.engine.closed)
        assert driven.host.state is HostState.DRAINING


def test_an_engines_refusal_keeps_its_class_and_field(driven: DrivenHost) -> None:
    reader = driven.submit()
    finish = Finish(reader.handle, "error", "No such thing.", error_kind="UnsupportedFeatureError", param="seed")
    driven.engine.events.post(StepBatch(finished=[finish]))
    driven.drain()
    with pytest.raises(UnsupportedFeatureError, match="No such thing") as caught:
        reader.record.result()
    assert caught.value.param == "seed"


def test_a_text_that_cannot_fit_is_refused_without_tokenizing_it(driven: DrivenHost) -> None:
    with pytest.raises(ContextLengthError, match="at least"):
        driven.submit("x" * 1_000_000)
    with pytest.raises(ConfigurationError, match="at most 64 strings"):
        driven.submit("x", stop=tuple(map(str, range(100))))


def test_the_last_reader_to_leave_cancels(driven: DrivenHost) -> None:
    reader = driven.submit()
    second = reader.record.subscribe(lambda: None)
    reader.subscription.close()
    assert driven.engine.cancelled == []
    second.close()
    second.close()
    assert driven.engine.cancelled == [(reader.handle, "disconnected")]
    driven.drain()
    assert driven.host.num_active == 0


def test_a_reader_that_never_reads_is_cut(driven: DrivenHost) -> None:
    record = driven.host.submit(GenerationRequest(prompt="x"))
    stalled = record.subscribe(lambda: None, max_unread_deltas=3)
    for _ in range(5):
        driven.engine.post(record.request.choices[0].handle, *driven.ids("a"))
        driven.drain()
    assert stalled.cut
    with pytest.raises(SlowReaderError, match="3 events behind"):
        _ = stalled.at_end
    assert record.cancel_reason is CancelReason.DISCONNECTED


def test_a_deadline_cancels_and_keeps_the_choices_that_arrived(driven: DrivenHost) -> None:
    request = GenerationRequest(prompt="x", sampling_params=SamplingParams(n=2, temperature=1.0), deadline_s=0.05)
    reader = driven.submit_request(request)
    driven.engine.post(reader.handles[0], *driven.ids("done"))
    driven.engine.finish(reader.handles[0], "stop")
    driven.drain_until(lambda: reader.record.finished)
    result = reader.record.result()
    assert [(choice.index, choice.text) for choice in result.choices] == [(0, "done")]

    alone = driven.submit_request(GenerationRequest(prompt="x", deadline_s=0.05))
    driven.drain_until(lambda: alone.record.finished)
    with pytest.raises(DeadlineExceededError, match=r"0\.05 s"):
        alone.record.result()


def test_limits_are_told_before_any_work(driven: DrivenHost) -> None:
    limit = FULL.max_model_len
    with pytest.raises(ContextLengthError, match=rf"\b100\b.*\b{limit}\b"):
        driven.submit_request(GenerationRequest(prompt_tokens=(5,) * 100))
    with pytest.raises(ContextLengthError, match=r"60 tokens and max_tokens asks for 10.*70.*64") as caught:
        driven.submit_request(GenerationRequest(prompt_tokens=(5,) * 60, sampling_params=SamplingParams(max_tokens=10)))
    assert caught.value.param == "max_tokens"
    reader = driven.submit_request(GenerationRequest(prompt_tokens=(5,) * 60))
    assert driven.engine.requests[0].sampling_params.max_tokens == limit - 60
    assert reader.record.num_prompt_tokens == 60
    with pytest.raises(ConfigurationError, match="this model's ids are 0 to"):
        driven.submit_request(GenerationRequest(prompt_tokens=(10**6,)))
    with pytest.raises(ConfigurationError, match="empty"):
        driven.submit("")
    assert len(driven.engine.requests) == 1


@pytest.mark.parametrize("field", ["prompt", "stop_token_ids", "logit_bias"])
def test_ids_without_a_row_in_the_engine_are_refused(toy_path: Path, field: str) -> None:
    """Also those that the tokenizer has and the engine does not."""
    capabilities = msgspec.structs.replace(FULL, vocab_size=40, supports_logit_bias=True)
    with DrivenHost(toy_path, ManualBackend(capabilities)) as driven:
        assert driven.host.tokenizer.vocab_size > 40
        for token, fits in ((39, True), (40, False)):
            given = {"stop_token_ids": (token,)} if field == "stop_token_ids" else {}
            given |= {"logit_bias": {token: 1.0}} if field == "logit_bias" else {}
            prompt = (token,) if field == "prompt" else (5,)
            request = GenerationRequest(prompt_tokens=prompt, sampling_params=SamplingParams(**given))
            if fits:
                driven.submit_request(request)
                continue
            with pytest.raises(ConfigurationError, match="ids are 0 to 39") as caught:
                driven.submit_request(request)
            assert caught.value.param == field


def test_end_ids_are_resolved_and_left_out_when_ignored(driven: DrivenHost) -> None:
    driven.submit()
    driven.submit(ignore_eos=True)
    driven.submit(stop_token_ids=(7, 7))
    plain, ignoring, more = driven.engine.requests
    assert plain.stop_token_ids == driven.host.prompts.eos_token_ids
    assert ignoring.stop_token_ids == ()
    assert more.stop_token_ids == (*plain.stop_token_ids, 7)


def test_admission_is_bounded_and_ids_are_unique(toy_path: Path, backend: ManualBackend) -> None:
    with DrivenHost(toy_path, backend, max_num_requests=2) as driven:
        first = driven.submit_request(GenerationRequest(prompt="x", request_id="mine"))
        with pytest.raises(DuplicateRequestError, match="mine"):
            driven.submit_request(GenerationRequest(prompt="x", request_id="mine"))
        driven.submit()
        with pytest.raises(QueueFullError, match="max_num_requests"):
            driven.submit()
        driven.engine.finish(first.handle, "stop")
        driven.drain()
        driven.submit_request(GenerationRequest(prompt="x", request_id="mine"))


def test_what_is_not_declared_is_refused_before_the_engine(toy_path: Path) -> None:
    backend = ManualBackend(Capabilities(name="bare", max_model_len=64, temperature=0.7, top_k=20))
    with DrivenHost(toy_path, backend) as driven:
        for name, value in {
            "temperature": 0.1, "top_p": 0.5, "top_k": 3, "seed": 5, "min_p": 0.1, "logprobs": True,
            "repetition_penalty": 1.1, "frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {1: 1.0},
            "min_tokens": 1, "ignore_eos": True, "stop_token_ids": (1,), "prompt_logprobs": True,
            "response_format": {"type": "json_object"},
        }.items():  # fmt: skip
            fields = {"temperature": 0.7, name: value}
            with pytest.raises(UnsupportedFeatureError) as caught:
                driven.submit(**fields)
            assert caught.value.param == name
        with pytest.raises(UnsupportedFeatureError, match="every choice would be the same"):
            driven.submit(temperature=0.7, n=2)
        driven.submit(temperature=0.7, top_k=20, top_p=1.0, seed=0, response_format={"type": "text"})
        assert len(driven.engine.requests) == 1


def test_a_host_tells_its_progress_until_it_is_ready(toy_path: Path, backend: ManualBackend) -> None:
    backend.may_open.clear()
    with DrivenHost(toy_path, backend, wait=False) as driven:
        driven.drain_until(lambda: driven.host.progress[0] == "weights")
        health = driven.host.health()
        assert (health.status, health.ready) == ("loading", False)
        assert "weights (50%)" in health.message
        with pytest.raises(BackendUnavailableError, match="still loading"):
            driven.submit()
        with pytest.raises(BackendUnavailableError, match=r"still loading after 0\.01 s"):
            driven.host.wait_ready(0.01)
        changes: list[HostState] = []
        driven.host.on_change(lambda: changes.append(driven.host.state))
        backend.may_open.set()
        driven.host.wait_ready(20)
        driven.drain()
        assert changes == [HostState.READY]
        assert driven.host.health().ready


def test_a_first_load_that_fails_says_why_and_is_not_repeated(toy_path: Path, backend: ManualBackend) -> None:
    backend.failures.append(CheckpointError("The weights are upside down."))
    with DrivenHost(toy_path, backend, wait=False) as driven:
        with pytest.raises(CheckpointError, match="upside down"):
            driven.host.wait_ready(20)
        assert driven.host.state is HostState.FAILED
        time.sleep(0.1)
        assert driven.host.state is HostState.FAILED
        assert backend.opened == []


def test_a_broken_engine_fails_its_requests_truthfully_and_is_reopened(
    driven: DrivenHost, backend: ManualBackend, caplog: pytest.LogCaptureFixture
) -> None:
    reader = driven.submit()
    first = driven.engine
    first.post(reader.handle, *driven.ids("ab"))
    first.break_down("The device is on fire.")
    events = reader.take()
    assert events[-1].finish_reason == "error"
    assert events[-1].error == "The device is on fire."
    assert f"The device is on fire. It ends these requests: {reader.record.request_id}" in caplog.text
    assert "".join(event.text for event in events) == "ab"
    with pytest.raises(EngineError, match="on fire"):
        reader.record.result()
    driven.drain_until(lambda: driven.host.state is HostState.READY)
    assert driven.host.epoch == 2
    assert driven.engine is not first
    driven.drain_until(lambda: first.closed)
    again = driven.submit()
    driven.engine.finish(again.handle, "stop")
    assert again.take()[-1].finish_reason == "stop"


def test_restarts_are_limited_and_the_host_says_so(toy_path: Path, backend: ManualBackend) -> None:
    limits = HostLimits(restart_delay_s=0.001, max_restarts=2)
    with DrivenHost(toy_path, backend, limits=limits) as driven:
        for epoch in (1, 2, 3):
            driven.drain_until(lambda epoch=epoch: driven.host.epoch == epoch and driven.host.state is HostState.READY)  # type: ignore[misc]  # mypy cannot infer a lambda's default
            driven.engine.break_down("Broken again.")
        driven.drain()
        time.sleep(0.1)
        driven.drain()
        assert driven.host.state is HostState.FAILED
        assert "failed 3 times" in driven.host.health().message
        with pytest.raises(BackendUnavailableError, match="Broken again"):
            driven.submit()


def test_a_failed_reopen_counts_and_is_tried_again(driven: DrivenHost, backend: ManualBackend) -> None:
    backend.failures.append(RuntimeError("still hot"))
    driven.engine.break_down("The device is on fire.")
    driven.drain_until(lambda: driven.host.epoch == 2 and driven.host.state is HostState.READY)
    assert backend.failures == []


def test_close_ends_everything_and_is_idempotent(driven: DrivenHost) -> None:
    reader = driven.submit()
    driven.host.close(1.0)
    driven.host.close(1.0)
    assert reader.take()[-1].finish_reason == "cancelled"
    assert driven.engine.closed
    with pytest.raises(BackendUnavailableError, match="closed"):
        driven.submit()


def test_close_while_loading_closes_what_was_opened(toy_path: Path, backend: ManualBackend) -> None:
    backend.may_open.clear()
    driven = DrivenHost(toy_path, backend, wait=False)
    driven.drain_until(lambda: driven.host.progress[0] == "weights")
    closer = threading.Thread(target=driven.host.close, args=(5.0,))
    closer.start()
    driven.drain_until(lambda: driven.host.state is HostState.CLOSED)
    backend.may_open.set()
    closer.join(20)
    assert not closer.is_alive()
    assert driven.engine.closed
    driven.host.release()


def test_draining_refuses_new_requests_and_lets_active_ones_end(driven: DrivenHost) -> None:
    reader = driven.submit()
    driven.host.begin_drain()
    with pytest.raises(BackendUnavailableError, match="shutting down"):
        driven.submit()
    assert not driven.host.wait_idle(0.01)
    driven.engine.finish(reader.handle, "stop")
    driven.drain()
    assert driven.host.wait_idle(1.0)
    assert driven.host.health().status == "draining"


def test_cancelling_a_call_reaches_all_its_prompts(driven: DrivenHost) -> None:
    readers = [driven.submit_request(request) for request in prompt_requests(["a", "b"], None, "call")]
    other = driven.submit_request(GenerationRequest(prompt="x", request_id="call#2"))  # a name makes no call
    assert driven.host.cancel("call")
    assert {handle for handle, _ in driven.engine.cancelled} == {reader.handle for reader in readers}
    assert not other.record.finished


def test_one_prompt_of_a_call_is_cancelled_by_its_own_id(driven: DrivenHost) -> None:
    first, second = (driven.submit_request(request) for request in prompt_requests(["a", "b"], None, "call"))
    assert driven.host.cancel(second.record.request_id)
    assert [handle for handle, _ in driven.engine.cancelled] == [second.handle]
    assert driven.host.cancel("call")
    assert [handle for handle, _ in driven.engine.cancelled] == [second.handle, first.handle]
