"""What a drain brings to readers: tokens become text, stop strings end it, a broken batch harms the engine alone."""

from __future__ import annotations

import msgspec
import pytest

from pocketllm.prompt.builder import Prepared
from pocketllm.sampling_params import SamplingParams
from pocketllm.text.reasoning import ReasoningMode
from pocketllm.types import (
    GenerationRequest,
    PromptReport,
    StepBatch,
    TokenLogprob,
)
from tests.host.manual_engine import DrivenHost


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
