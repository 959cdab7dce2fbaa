"""Every way to cancel a request, and engines that do not obey."""

from __future__ import annotations

import pytest

from pocketllm.engine.call import GenerateCall
from pocketllm.errors import (
    DeadlineExceededError,
    RequestCancelledError,
    SlowReaderError,
)
from pocketllm.protocol import prompt_requests
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import (
    CancelReason,
    GenerationRequest,
)
from tests.host.manual_engine import DrivenHost


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


def test_an_engine_that_raises_in_cancel_harms_nobody(driven: DrivenHost, caplog: pytest.LogCaptureFixture) -> None:
    reader = driven.submit(stop=("b",))
    driven.engine.cancelled = None  # type: ignore[assignment]  # makes its pocketllm_cancel raise
    driven.engine.post(reader.handle, *driven.ids("ab"))
    assert reader.take()[-1].finish_reason == "stop"
    assert "The engine raised in pocketllm_cancel" in caplog.text


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
