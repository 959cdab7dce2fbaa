"""The stream validator: what it passes, and the rule and position it names for every fault."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.sampling_params import SamplingParams
from pocketllm.testing import check_stream
from pocketllm.types import (
    Choice,
    Finish,
    GenerationRequest,
    PromptReport,
    RowExtra,
    StepBatch,
    TokenFlag,
    TokenLogprob,
)

HANDLE = 7
STOP_ID = 2
TEXT, STOP = int(TokenFlag.TEXT), int(TokenFlag.STOP)


def make_request(max_tokens: int = 4, logprobs: bool = False) -> GenerationRequest:
    return GenerationRequest(
        prompt_tokens=(5, 6),
        choices=(Choice(HANDLE, 0),),
        stop_token_ids=(STOP_ID,),
        sampling_params=SamplingParams(max_tokens=max_tokens, logprobs=logprobs),
    )


def rows(*tokens: int, flag: int = 0, **columns: object) -> StepBatch:
    values = {"handles": [HANDLE] * len(tokens), "tokens": list(tokens), "flags": [flag] * len(tokens), **columns}
    return StepBatch(**values)  # type: ignore[arg-type]  # columns of any kind


def end(reason: str, error: str | None = None, handle: int = HANDLE) -> StepBatch:
    return StepBatch(finished=[Finish(handle, reason, error)])


STOPPED = rows(STOP_ID, flag=STOP)


@pytest.mark.parametrize(
    "batches",
    [
        [rows(10, 11, 12, 13), end("length")],
        [rows(10), rows(11), STOPPED, end("stop")],
        [STOPPED, end("stop")],
        [rows(10, 11, 12), STOPPED, end("stop")],
        [end("cancelled")],
        [rows(10), end("cancelled")],
        [rows(10), end("stop")],
        [rows(10), end("tool_calls")],
        [rows(0, flag=TEXT, extras=[RowExtra(0, text="hi")]), end("stop")],
        [StepBatch(prompts=[PromptReport(HANDLE, 1)]), rows(10, 11, 12, 13), end("length")],
        [rows(10, 11, 12, 13, finished=[Finish(HANDLE, "length")])],
        [StepBatch([8, HANDLE], [3, 10], [0, 0]), end("length", handle=8), end("cancelled")],
    ],
)
def test_the_rules_of_streams_pass_good_ones(batches: list[StepBatch]) -> None:
    assert check_stream(batches, make_request()) == []


@pytest.mark.parametrize(
    ("rule", "position", "batches"),
    [
        ("S1", 1, [rows(10)]),
        ("S1", 0, []),
        ("S1", 2, [rows(10), end("cancelled"), end("cancelled")]),
        ("S2", 2, [rows(10), end("cancelled"), rows(11)]),
        ("S2", 1, [end("cancelled"), StepBatch(prompts=[PromptReport(HANDLE)])]),
        ("S3", 1, [rows(10), end("eos")]),
        ("S4", 0, [end("stop")]),
        ("S4", 1, [StepBatch(prompts=[PromptReport(HANDLE)]), end("tool_calls")]),
        ("S5", 4, [rows(10, 11, 12, 13, 14), end("cancelled")]),
        ("S5", 1, [rows(10), end("length")]),
        ("S5", 4, [rows(10, 11, 12, 13), end("stop")]),
        ("S6", 0, [rows(STOP_ID), end("stop")]),
        ("S6", 0, [rows(10, flag=STOP), end("stop")]),
        ("S6", 1, [STOPPED, end("cancelled")]),
        ("S6", 0, [STOPPED, rows(10), end("cancelled")]),
        ("S7", 0, [rows(100), end("cancelled")]),
        ("S7", 0, [rows(-1), end("cancelled")]),
        ("S7", None, [StepBatch([HANDLE], [10], []), end("cancelled")]),
        ("S7", None, [rows(10, extras=[RowExtra(1)]), end("cancelled")]),
        ("S7", None, [rows(10, logprobs=[TokenLogprob(0, -1.0), TokenLogprob(0, -1.0)]), end("cancelled")]),
        ("S8", 1, [StepBatch(prompts=[PromptReport(HANDLE), PromptReport(HANDLE)]), end("cancelled")]),
        ("S8", 1, [rows(10), StepBatch(prompts=[PromptReport(HANDLE)]), end("cancelled")]),
        ("S9", 0, [rows(10, logprobs=[TokenLogprob(0, -1.0)]), end("cancelled")]),
        ("S9", 0, [StepBatch(prompts=[PromptReport(HANDLE, 0, [TokenLogprob(1, -1.0)])]), end("cancelled")]),
        ("S10", 1, [rows(10), end("error", "broke")]),
        ("S10", 1, [rows(10), end("cancelled", "why?")]),
    ],
)
def test_a_fault_is_named_with_its_place(rule: str, position: int | None, batches: list[StepBatch]) -> None:
    violations = check_stream(batches, make_request(), vocab_size=50)
    assert [(violation.rule, violation.position) for violation in violations] == [(rule, position)]


def test_a_missing_log_probability_is_named() -> None:
    batches = [rows(10, logprobs=[TokenLogprob(0, -1.0)]), rows(11), STOPPED, end("stop")]
    violations = check_stream(batches, make_request(logprobs=True))
    assert [(violation.rule, violation.position) for violation in violations] == [("S9", 1)]


def test_an_expected_error_needs_its_text() -> None:
    assert check_stream([end("error", "broke")], make_request(), healthy=False) == []
    assert [v.rule for v in check_stream([end("error")], make_request(), healthy=False)] == ["S10"]


def test_an_incomplete_recording_may_lack_its_end() -> None:
    assert check_stream([rows(10)], make_request(), complete=False) == []


@given(num_tokens=st.integers(1, 8), cuts=st.sets(st.integers(1, 7)), stopped=st.booleans())
def test_any_chunking_of_a_good_stream_passes(num_tokens: int, cuts: set[int], stopped: bool) -> None:
    tokens = [10 + index for index in range(num_tokens)]
    edges = [0, *sorted(cut for cut in cuts if cut < num_tokens), num_tokens]
    batches = [rows(*tokens[begin:stop]) for begin, stop in itertools.pairwise(edges)]
    last = [STOPPED, end("stop")] if stopped else [end("length")]
    assert check_stream([*batches, *last], make_request(max_tokens=num_tokens + stopped)) == []


@given(st.lists(st.sampled_from(["row", "stop", "text", "finish"]), max_size=6))
def test_only_streams_with_one_last_end_pass(kinds: list[str]) -> None:
    made = {
        "row": rows(10),
        "stop": STOPPED,
        "text": rows(0, flag=TEXT),
        "finish": end("cancelled"),
    }
    passed = not check_stream([made[kind] for kind in kinds], make_request(max_tokens=100))
    ends_once = kinds.count("finish") == 1 and kinds[-1:] == ["finish"]
    assert passed == (ends_once and "stop" not in kinds)
