"""The slot: states, admission, events to readers, cancellation, failure and restart."""

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
from tests.engine.manual_engine import FULL, ManualBackend, Slot


def test_tokens_become_text_and_usage(slot: Slot) -> None:
    reader = slot.submit("hello")
    ids = slot.ids("wörld!")
    slot.engine.post(reader.handle, *ids)
    events = reader.take()
    assert [event.text for event in events] == ["wörld!"]
    assert events[0].token_ids == tuple(ids)
    assert events[0].finish_reason is None
    slot.engine.post_stop(reader.handle, slot.engine.requests[0].stop_token_ids[0])
    (last,) = reader.take()
    assert last.finish_reason == "stop"
    assert last.text == ""
    assert last.token_ids == ()
    assert last.usage is not None
    assert last.usage.prompt_tokens == len(slot.ids("hello"))
    assert last.usage.completion_tokens == len(ids) + 1
    assert reader.record.result().token_ids == tuple(ids)
    assert slot.host.num_active == 0


def test_a_slow_reader_gets_merged_deltas_and_one_wake_per_drain(slot: Slot) -> None:
    reader = slot.submit()
    for token in slot.ids("abc"):
        slot.engine.post(reader.handle, token)
    slot.drain()
    assert reader.num_wakes == 1
    slot.engine.post(reader.handle, *slot.ids("def"))
    slot.drain()
    assert [event.text for event in reader.take()] == ["abcdef"]


def test_two_readers_see_the_same_and_late_ones_start_from_the_beginning(slot: Slot) -> None:
    reader = slot.submit()
    slot.engine.post(reader.handle, *slot.ids("abc"))
    assert [event.text for event in reader.take()] == ["abc"]
    late = reader.record.subscribe(lambda: None)
    slot.engine.post(reader.handle, *slot.ids("d"))
    slot.engine.finish(reader.handle, "length")
    slot.drain()
    assert [event.text for event in late.take()] == ["abcd"]
    assert [event.text for event in reader.take()] == ["d"]
    assert late.at_end


def test_choices_share_a_request_and_end_one_by_one(slot: Slot) -> None:
    reader = slot.submit(n=3, temperature=1.0, seed=7)
    assert [choice.seed for choice in slot.engine.requests[0].choices] == [7, 8, 9]
    first, second, third = reader.handles
    slot.engine.post(first, *slot.ids("one"))
    slot.engine.post(third, *slot.ids("three"))
    assert {event.choice_index: event.text for event in reader.take()} == {0: "one", 2: "three"}
    slot.engine.finish(third, "length")
    slot.engine.post(second, *slot.ids("two"))
    events = reader.take()
    assert [(event.choice_index, event.finish_reason) for event in events] == [(1, None), (2, "length")]
    assert all(event.usage is None for event in events)
    slot.engine.finish(first, "length")
    slot.engine.finish(second, "stop")
    events = reader.take()
    assert events[-1].usage is not None
    result = reader.record.result()
    assert [choice.text for choice in result.choices] == ["one", "two", "three"]
    assert result.usage.completion_tokens == sum(len(slot.ids(text)) for text in ("one", "two", "three"))


def test_a_stop_string_ends_the_engines_work_and_the_count(slot: Slot) -> None:
    reader = slot.submit(stop=("STOP",), logprobs=True)
    ids = slot.ids("ab STO")
    slot.engine.post(reader.handle, *ids, logprob=-1.0)
    assert "".join(event.text for event in reader.take()) == "ab "
    rest = slot.ids("P and more")
    slot.engine.post(reader.handle, *rest, logprob=-1.0)
    events = reader.take()
    assert [event.text for event in events] == [""]
    assert events[0].finish_reason == "stop"
    assert (reader.handle, "stop_string") in slot.engine.cancelled
    assert events[0].metadata == {"stop_sequence": "STOP"}
    result = reader.record.result()
    assert result.choices[0].stop_sequence == "STOP"
    assert result.text == "ab "
    assert result.logprobs is not None
    assert "".join(entry.token for entry in result.logprobs) == "ab "
    assert len(result.logprobs) == len(result.token_ids)
    # Up to and including the token that completed the match, whatever the engine ran past it.
    assert result.usage.completion_tokens == len(slot.ids("ab STO")) + 1
    assert slot.host.num_active == 0


def test_stop_is_for_the_answer_and_not_for_reasoning(slot: Slot) -> None:
    text = "<think>a STOP b</think>c STOP d"
    request = GenerationRequest(prompt="x", sampling_params=SamplingParams(stop=("STOP",)))
    prepared = slot.host.prepare(request)
    record = slot.host.submit(request, Prepared(prepared.request, ReasoningMode.AUTO, prepared.stops))
    slot.engine.post(record.request.choices[0].handle, *slot.ids(text))
    slot.drain()
    result = record.result()
    assert result.reasoning_content == "a STOP b"
    assert result.text == "c "
    assert result.finish_reason == "stop"


def test_held_text_is_flushed_at_the_end(slot: Slot) -> None:
    reader = slot.submit(stop=("STOP",))
    slot.engine.post(reader.handle, *slot.ids("a STO"))
    slot.engine.finish(reader.handle, "length")
    assert "".join(event.text for event in reader.take()) == "a STO"
    assert reader.record.result().token_ids == tuple(slot.ids("a STO"))


def test_log_probabilities_have_exact_bytes(slot: Slot) -> None:
    reader = slot.submit(logprobs=True, top_logprobs=1)
    ids = slot.ids("é")
    batch_rows = [TokenLogprob(row, -0.5, [(token, -0.5)]) for row, token in enumerate(ids)]
    slot.engine.events.post(
        StepBatch(handles=[reader.handle] * len(ids), tokens=ids, flags=[0] * len(ids), logprobs=batch_rows)
    )
    slot.engine.finish(reader.handle, "length")
    slot.drain()
    entries = reader.record.result().logprobs
    assert entries is not None
    assert bytes(byte for entry in entries for byte in entry.bytes) == "é".encode()
    assert all(entry.top_logprobs[0].token_id == entry.token_id for entry in entries)


def test_cancel_waits_for_the_engine_and_answers_once(slot: Slot) -> None:
    reader = slot.submit()
    slot.engine.post(reader.handle, *slot.ids("ab"))
    slot.drain()
    assert slot.host.cancel(reader.record.request_id)
    assert not slot.host.cancel(reader.record.request_id)
    events = reader.take()
    assert events[-1].finish_reason == "cancelled"
    assert "".join(event.text for event in events) == "ab"
    assert not slot.host.cancel(reader.record.request_id)
    with pytest.raises(RequestCancelledError):
        reader.record.result()


def test_an_engine_that_is_deaf_to_cancel_cannot_hold_a_caller(slot: Slot) -> None:
    slot.engine.deaf = True
    reader = slot.submit()
    assert slot.host.cancel(reader.record.request_id)
    slot.drain_until(lambda: reader.record.finished)
    assert reader.take()[-1].finish_reason == "cancelled"
    slot.engine.post(reader.handle, 5)  # a late event reaches nobody
    assert reader.take() == []


def test_an_engine_that_hangs_is_replaced(slot: Slot) -> None:
    slot.engine.deaf = True
    hung = slot.submit()
    other = slot.submit()
    assert slot.host.cancel(hung.record.request_id)
    slot.drain_until(lambda: slot.host.epoch == 2)
    assert hung.take()[-1].finish_reason == "cancelled"
    assert "it hangs" in (other.take()[-1].error or "")


def test_a_reader_that_only_waits_for_the_result_is_never_cut(slot: Slot) -> None:
    record = slot.host.submit(GenerationRequest(prompt="x"))
    waiting = record.subscribe(lambda: None, max_unread_deltas=3)
    waiting.wait_for_end()
    for _ in range(10):
        slot.engine.post(record.request.choices[0].handle, *slot.ids("a"))
        slot.drain()
    assert not waiting.cut
    slot.engine.finish(record.request.choices[0].handle, "length")
    slot.drain()
    assert record.result().text == "a" * 10


def test_leaving_wakes_whoever_waits(slot: Slot) -> None:
    reader = slot.submit()
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
def test_a_malformed_batch_fails_the_engine_and_not_the_pump(slot: Slot, batch: StepBatch) -> None:
    reader = slot.submit()
    handles = [reader.handle] * len(batch.handles)
    prompts = [msgspec.structs.replace(report, handle=reader.handle) for report in batch.prompts]
    slot.engine.events.post(msgspec.structs.replace(batch, handles=handles, prompts=prompts))
    slot.drain()
    assert reader.take()[-1].finish_reason == "error"
    slot.drain_until(lambda: slot.host.epoch == 2)


def test_an_engine_that_raises_in_cancel_harms_nobody(slot: Slot, caplog: pytest.LogCaptureFixture) -> None:
    reader = slot.submit(stop=("b",))
    slot.engine.cancelled = None  # type: ignore[assignment]  # makes its pocketllm_cancel raise
    slot.engine.post(reader.handle, *slot.ids("ab"))
    assert reader.take()[-1].finish_reason == "stop"
    assert "The engine raised in pocketllm_cancel" in caplog.text


@pytest.mark.parametrize("failure", [SystemExit("no GPU"), KeyboardInterrupt(), RuntimeError("boom")])
def test_whatever_an_open_raises_the_slot_says_so(
    toy_path: Path, backend: ManualBackend, failure: BaseException
) -> None:
    backend.failures.append(failure)
    with Slot(toy_path, backend, wait=False) as slot:
        with pytest.raises(EngineError, match="Loading failed"):
            slot.host.wait_ready(20)
        with pytest.raises(BackendUnavailableError, match="could not be loaded"):
            slot.submit()


def test_an_engine_without_an_event_source_is_refused(toy_path: Path, backend: ManualBackend) -> None:
    backend.without_events = True
    with Slot(toy_path, backend, wait=False) as slot:
        with pytest.raises(EngineError, match="event source"):
            slot.host.wait_ready(20)
        assert slot.engine.closed


class Quiet:
    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> None:
        return None


def test_an_extension_may_have_any_name(toy_path: Path, backend: ManualBackend) -> None:
    with Slot(toy_path, backend, extensions={"engine": Quiet(), "gate": Quiet()}) as slot:
        assert slot.submit("hello").record.num_prompt_tokens == len(slot.ids("hello"))


def test_cancelling_while_the_hook_runs_leaves_no_timer_behind(slot: Slot) -> None:
    def generate(call: GenerateCall) -> bool:
        slot.host.cancel("mine")
        slot.engine.finish(call.request.choices[0].handle, "stop")
        slot.drain()
        return True

    slot.engine.on_generate = generate
    reader = slot.submit_request(GenerationRequest(prompt="x", request_id="mine"))
    assert reader.record.finished
    assert slot.host.next_timer() is None


def test_an_engine_lost_during_the_hook_refuses_the_request(toy_path: Path, backend: ManualBackend) -> None:
    class LosesTheEngine:
        @hookimpl
        def pocketllm_generate(self, call: GenerateCall) -> None:
            slot.host.fail("lost")

    with Slot(toy_path, backend, extensions={"loses": LosesTheEngine()}) as slot:
        with pytest.raises(BackendUnavailableError, match="was lost"):
            slot.submit()
        assert slot.host.num_active == 0


def test_draining_while_loading_never_becomes_ready(toy_path: Path, backend: ManualBackend) -> None:
    backend.may_open.clear()
    with Slot(toy_path, backend, wait=False) as slot:
        slot.drain_until(lambda: slot.host.progress[0] == "weights")
        slot.host.begin_drain()
        backend.may_open.set()
        slot.drain_until(lambda: bool(backend.opened) and backend.engine.closed)
        assert slot.host.state is HostState.DRAINING


def test_an_engines_refusal_keeps_its_class_and_field(slot: Slot) -> None:
    reader = slot.submit()
    finish = Finish(reader.handle, "error", "No such thing.", error_kind="UnsupportedFeatureError", param="seed")
    slot.engine.events.post(StepBatch(finished=[finish]))
    slot.drain()
    with pytest.raises(UnsupportedFeatureError, match="No such thing") as caught:
        reader.record.result()
    assert caught.value.param == "seed"


def test_a_text_that_cannot_fit_is_refused_without_tokenizing_it(slot: Slot) -> None:
    with pytest.raises(ContextLengthError, match="at least"):
        slot.submit("x" * 1_000_000)
    with pytest.raises(ConfigurationError, match="at most 64 strings"):
        slot.submit("x", stop=tuple(map(str, range(100))))


def test_the_last_reader_to_leave_cancels(slot: Slot) -> None:
    reader = slot.submit()
    second = reader.record.subscribe(lambda: None)
    reader.subscription.close()
    assert slot.engine.cancelled == []
    second.close()
    second.close()
    assert slot.engine.cancelled == [(reader.handle, "disconnected")]
    slot.drain()
    assert slot.host.num_active == 0


def test_a_reader_that_never_reads_is_cut(slot: Slot) -> None:
    record = slot.host.submit(GenerationRequest(prompt="x"))
    stalled = record.subscribe(lambda: None, max_unread_deltas=3)
    for _ in range(5):
        slot.engine.post(record.request.choices[0].handle, *slot.ids("a"))
        slot.drain()
    assert stalled.cut
    with pytest.raises(SlowReaderError, match="3 events behind"):
        _ = stalled.at_end
    assert record.cancel_reason is CancelReason.DISCONNECTED


def test_a_deadline_cancels_and_keeps_the_choices_that_arrived(slot: Slot) -> None:
    request = GenerationRequest(prompt="x", sampling_params=SamplingParams(n=2, temperature=1.0), deadline_s=0.05)
    reader = slot.submit_request(request)
    slot.engine.post(reader.handles[0], *slot.ids("done"))
    slot.engine.finish(reader.handles[0], "stop")
    slot.drain_until(lambda: reader.record.finished)
    result = reader.record.result()
    assert [(choice.index, choice.text) for choice in result.choices] == [(0, "done")]

    alone = slot.submit_request(GenerationRequest(prompt="x", deadline_s=0.05))
    slot.drain_until(lambda: alone.record.finished)
    with pytest.raises(DeadlineExceededError, match=r"0\.05 s"):
        alone.record.result()


def test_limits_are_told_before_any_work(slot: Slot) -> None:
    limit = FULL.max_model_len
    with pytest.raises(ContextLengthError, match=rf"\b100\b.*\b{limit}\b"):
        slot.submit_request(GenerationRequest(prompt_tokens=(5,) * 100))
    with pytest.raises(ContextLengthError, match=r"60 tokens and max_tokens asks for 10.*70.*64") as caught:
        slot.submit_request(GenerationRequest(prompt_tokens=(5,) * 60, sampling_params=SamplingParams(max_tokens=10)))
    assert caught.value.param == "max_tokens"
    reader = slot.submit_request(GenerationRequest(prompt_tokens=(5,) * 60))
    assert slot.engine.requests[0].sampling_params.max_tokens == limit - 60
    assert reader.record.num_prompt_tokens == 60
    with pytest.raises(ConfigurationError, match="outside this model's vocabulary"):
        slot.submit_request(GenerationRequest(prompt_tokens=(10**6,)))
    with pytest.raises(ConfigurationError, match="empty"):
        slot.submit("")
    assert len(slot.engine.requests) == 1


def test_end_ids_are_resolved_and_left_out_when_ignored(slot: Slot) -> None:
    slot.submit()
    slot.submit(ignore_eos=True)
    slot.submit(stop_token_ids=(7, 7))
    plain, ignoring, more = slot.engine.requests
    assert plain.stop_token_ids == slot.host.prompts.eos_token_ids
    assert ignoring.stop_token_ids == ()
    assert more.stop_token_ids == (*plain.stop_token_ids, 7)


def test_admission_is_bounded_and_ids_are_unique(toy_path: Path, backend: ManualBackend) -> None:
    with Slot(toy_path, backend, max_num_requests=2) as slot:
        first = slot.submit_request(GenerationRequest(prompt="x", request_id="mine"))
        with pytest.raises(DuplicateRequestError, match="mine"):
            slot.submit_request(GenerationRequest(prompt="x", request_id="mine"))
        slot.submit()
        with pytest.raises(QueueFullError, match="max_num_requests"):
            slot.submit()
        slot.engine.finish(first.handle, "stop")
        slot.drain()
        slot.submit_request(GenerationRequest(prompt="x", request_id="mine"))


def test_what_is_not_declared_is_refused_before_the_engine(toy_path: Path) -> None:
    backend = ManualBackend(Capabilities(name="bare", max_model_len=64, temperature=0.7, top_k=20))
    with Slot(toy_path, backend) as slot:
        for name, value in {
            "temperature": 0.1, "top_p": 0.5, "top_k": 3, "seed": 5, "min_p": 0.1, "logprobs": True,
            "repetition_penalty": 1.1, "frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {1: 1.0},
            "min_tokens": 1, "ignore_eos": True, "stop_token_ids": (1,), "prompt_logprobs": True,
            "response_format": {"type": "json_object"},
        }.items():  # fmt: skip
            fields = {"temperature": 0.7, name: value}
            with pytest.raises(UnsupportedFeatureError) as caught:
                slot.submit(**fields)
            assert caught.value.param == name
        with pytest.raises(UnsupportedFeatureError, match="every choice would be the same"):
            slot.submit(temperature=0.7, n=2)
        slot.submit(temperature=0.7, top_k=20, top_p=1.0, seed=0, response_format={"type": "text"})
        assert len(slot.engine.requests) == 1


def test_progress_then_ready(toy_path: Path, backend: ManualBackend) -> None:
    backend.may_open.clear()
    with Slot(toy_path, backend, wait=False) as slot:
        slot.drain_until(lambda: slot.host.progress[0] == "weights")
        health = slot.host.health()
        assert (health.status, health.ready) == ("loading", False)
        assert "weights (50%)" in health.message
        with pytest.raises(BackendUnavailableError, match="still loading"):
            slot.submit()
        with pytest.raises(BackendUnavailableError, match=r"still loading after 0\.01 s"):
            slot.host.wait_ready(0.01)
        changes: list[HostState] = []
        slot.host.on_change(lambda: changes.append(slot.host.state))
        backend.may_open.set()
        slot.host.wait_ready(20)
        slot.drain()
        assert changes == [HostState.READY]
        assert slot.host.health().ready


def test_a_first_load_that_fails_says_why_and_is_not_repeated(toy_path: Path, backend: ManualBackend) -> None:
    backend.failures.append(CheckpointError("The weights are upside down."))
    with Slot(toy_path, backend, wait=False) as slot:
        with pytest.raises(CheckpointError, match="upside down"):
            slot.host.wait_ready(20)
        assert slot.host.state is HostState.FAILED
        time.sleep(0.1)
        assert slot.host.state is HostState.FAILED
        assert backend.opened == []


def test_a_broken_engine_fails_its_requests_truthfully_and_is_reopened(
    slot: Slot, backend: ManualBackend, caplog: pytest.LogCaptureFixture
) -> None:
    reader = slot.submit()
    first = slot.engine
    first.post(reader.handle, *slot.ids("ab"))
    first.break_down("The device is on fire.")
    events = reader.take()
    assert events[-1].finish_reason == "error"
    assert events[-1].error == "The device is on fire."
    assert f"The device is on fire. It ends these requests: {reader.record.request_id}" in caplog.text
    assert "".join(event.text for event in events) == "ab"
    with pytest.raises(EngineError, match="on fire"):
        reader.record.result()
    slot.drain_until(lambda: slot.host.state is HostState.READY)
    assert slot.host.epoch == 2
    assert slot.engine is not first
    slot.drain_until(lambda: first.closed)
    again = slot.submit()
    slot.engine.finish(again.handle, "stop")
    assert again.take()[-1].finish_reason == "stop"


def test_restarts_are_limited_and_the_slot_says_so(toy_path: Path, backend: ManualBackend) -> None:
    limits = HostLimits(restart_delay_s=0.001, max_restarts=2)
    with Slot(toy_path, backend, limits=limits) as slot:
        for epoch in (1, 2, 3):
            slot.drain_until(lambda epoch=epoch: slot.host.epoch == epoch and slot.host.state is HostState.READY)  # type: ignore[misc]  # mypy cannot infer a lambda's default
            slot.engine.break_down("Broken again.")
        slot.drain()
        time.sleep(0.1)
        slot.drain()
        assert slot.host.state is HostState.FAILED
        assert "failed 3 times" in slot.host.health().message
        with pytest.raises(BackendUnavailableError, match="Broken again"):
            slot.submit()


def test_a_failed_reopen_counts_and_is_tried_again(slot: Slot, backend: ManualBackend) -> None:
    backend.failures.append(RuntimeError("still hot"))
    slot.engine.break_down("The device is on fire.")
    slot.drain_until(lambda: slot.host.epoch == 2 and slot.host.state is HostState.READY)
    assert backend.failures == []


def test_close_ends_everything_and_is_idempotent(slot: Slot) -> None:
    reader = slot.submit()
    slot.host.close(1.0)
    slot.host.close(1.0)
    assert reader.take()[-1].finish_reason == "cancelled"
    assert slot.engine.closed
    with pytest.raises(BackendUnavailableError, match="closed"):
        slot.submit()


def test_close_while_loading_closes_what_was_opened(toy_path: Path, backend: ManualBackend) -> None:
    backend.may_open.clear()
    slot = Slot(toy_path, backend, wait=False)
    slot.drain_until(lambda: slot.host.progress[0] == "weights")
    closer = threading.Thread(target=slot.host.close, args=(5.0,))
    closer.start()
    slot.drain_until(lambda: slot.host.state is HostState.CLOSED)
    backend.may_open.set()
    closer.join(20)
    assert not closer.is_alive()
    assert slot.engine.closed
    slot.host.release()


def test_draining_refuses_new_requests_and_lets_active_ones_end(slot: Slot) -> None:
    reader = slot.submit()
    slot.host.begin_drain()
    with pytest.raises(BackendUnavailableError, match="shutting down"):
        slot.submit()
    assert not slot.host.wait_idle(0.01)
    slot.engine.finish(reader.handle, "stop")
    slot.drain()
    assert slot.host.wait_idle(1.0)
    assert slot.host.health().status == "draining"


def test_cancelling_a_call_reaches_all_its_prompts(slot: Slot) -> None:
    readers = [slot.submit_request(request) for request in prompt_requests(["a", "b"], None, "call")]
    other = slot.submit_request(GenerationRequest(prompt="x", request_id="call-2"))
    assert slot.host.cancel("call")
    assert {handle for handle, _ in slot.engine.cancelled} == {reader.handle for reader in readers}
    assert not other.record.finished
