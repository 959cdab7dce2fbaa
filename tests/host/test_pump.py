"""Any way of cutting the same rows into batches and drains gives the same answer, and the deltas add up to it."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Finish, GenerationRequest, PromptReport, RowExtra, StepBatch, TokenFlag, TokenLogprob
from tests.host.manual_engine import DrivenHost, ManualBackend

TEXTS = st.text(alphabet="abé你😊 \n<>/think", max_size=24)


@pytest.fixture(scope="module")
def shared(toy_path: Path) -> object:
    with DrivenHost(toy_path, ManualBackend()) as driven:
        yield driven


def _run(
    driven: DrivenHost, ids: list[int], cuts: list[int], stop: tuple[str, ...], drain_each: bool
) -> tuple[object, str]:
    params = SamplingParams(stop=stop, logprobs=True)
    reader = driven.submit_request(GenerationRequest(prompt="x", sampling_params=params))
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    streamed = []
    for begin, end in itertools.pairwise(edges):
        rows = ids[begin:end]
        driven.engine.events.post(
            StepBatch(
                handles=[reader.handle] * len(rows),
                tokens=rows,
                flags=[0] * len(rows),
                logprobs=[TokenLogprob(row, -0.25) for row in range(len(rows))],
            )
        )
        if drain_each:
            streamed.extend(reader.take())
    driven.engine.finish(reader.handle, "length")
    streamed.extend(reader.take())
    result = reader.record.result()
    assert "".join(event.text for event in streamed) == result.text
    assert sum((event.token_ids for event in streamed), ()) == result.token_ids
    assert [event.finish_reason for event in streamed if event.finish_reason] == [result.finish_reason]
    assert streamed[-1].usage == result.usage
    plain = msgspec.structs.replace(result.choices[0])
    return (plain, result.usage), result.text


@settings(max_examples=80, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=8), stop=st.sampled_from([(), ("b",), ("é你", "\n\n")]))
def test_any_cut_gives_the_same_answer(shared: DrivenHost, text: str, cuts: list[int], stop: tuple[str, ...]) -> None:
    ids = shared.ids(text)
    whole, _ = _run(shared, ids, [], stop, drain_each=False)
    for drain_each in (False, True):
        assert _run(shared, ids, cuts, stop, drain_each)[0] == whole


def test_rows_of_many_sequences_in_one_batch_find_their_way(shared: DrivenHost) -> None:
    readers = [shared.submit() for _ in range(5)]
    ids = [shared.ids(word) for word in ("aaaa", "bbbb", "cccc", "dddd", "eeee")]
    for column in zip(*ids, strict=True):
        handles = [reader.handle for reader in readers]
        shared.engine.events.post(StepBatch(handles=handles, tokens=list(column), flags=[0] * 5))
    shared.engine.events.post(StepBatch(finished=[Finish(handle=reader.handle, reason="length") for reader in readers]))
    assert [reader.take()[-1].text for reader in readers] == ["aaaa", "bbbb", "cccc", "dddd", "eeee"]


def test_text_and_metadata_a_backend_brings_are_forwarded_unparsed(shared: DrivenHost) -> None:
    reader = shared.submit(stop=("END",))
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def bring(**extra: object) -> None:
        row = RowExtra(row=0, **extra)  # type: ignore[arg-type]  # keywords of one test
        shared.engine.events.post(
            StepBatch(handles=[reader.handle], tokens=[0], flags=[int(TokenFlag.TEXT)], extras=[row])
        )

    bring(reasoning_content="thinking END hard")
    bring(text="answer ")
    bring(tool_calls=[call])
    events = reader.take()
    assert events[0].reasoning_content == "thinking END hard"
    assert events[0].text == "answer "
    assert events[0].metadata == {"tool_calls": [call]}
    assert events[0].token_ids == ()
    shared.engine.finish(reader.handle, "stop")
    (last,) = reader.take()
    assert last.finish_reason == "tool_calls"
    result = reader.record.result()
    # A whole call stands for itself; its place in a stream is no part of it.
    assert result.choices[0].tool_calls == ({name: value for name, value in call.items() if name != "index"},)
    assert result.usage.completion_tokens == 0


def test_a_stop_string_in_text_a_backend_brings_ends_it_too(shared: DrivenHost) -> None:
    reader = shared.submit(stop=("END",))
    row = RowExtra(row=0, text="before END after")
    shared.engine.events.post(StepBatch(handles=[reader.handle], tokens=[0], flags=[int(TokenFlag.TEXT)], extras=[row]))
    (event,) = reader.take()
    assert (event.text, event.finish_reason) == ("before ", "stop")


def test_prompt_reports_give_cached_tokens_and_prompt_log_probabilities(shared: DrivenHost) -> None:
    reader = shared.submit_request(
        GenerationRequest(prompt_tokens=(5, 6, 7), sampling_params=SamplingParams(prompt_logprobs=True))
    )
    report = PromptReport(
        handle=reader.handle, num_cached_tokens=2, logprobs=[TokenLogprob(1, -1.0), TokenLogprob(2, -2.0)]
    )
    shared.engine.events.post(StepBatch(prompts=[report]))
    shared.engine.finish(reader.handle, "length")
    shared.drain()
    result = reader.record.result()
    assert result.usage.cached_tokens == 2
    assert result.prompt_logprobs is not None
    assert [entry and (entry.token_id, entry.logprob) for entry in result.prompt_logprobs] == [
        None, (6, -1.0), (7, -2.0),
    ]  # fmt: skip


def test_events_after_the_end_and_of_strangers_are_ignored(shared: DrivenHost) -> None:
    reader = shared.submit()
    shared.engine.finish(reader.handle, "stop")
    shared.engine.post(reader.handle, 5)
    shared.engine.finish(reader.handle, "length")
    shared.engine.post(10**9, 5)
    events = reader.take()
    assert [event.finish_reason for event in events] == ["stop"]
    assert reader.record.usage.completion_tokens == 0
