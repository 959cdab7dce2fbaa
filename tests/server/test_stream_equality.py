"""A stream adds up to the plain answer, byte for byte, however the engine batches and whenever the reader looks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketllm.sampling_params import SamplingParams
from pocketllm.testing.toy_checkpoint import write_toy_checkpoint
from pocketllm.types import Capabilities, Finish, GenerationRequest, RowExtra, StepBatch, TokenFlag, TokenLogprob
from pocketllm_server.answers.chat import ChatReply
from pocketllm_server.answers.completions import CompletionReply
from pocketllm_server.answers.sse import DONE
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.wire.completions_answer import chat_choice, completion_choice
from pocketllm_server.wire.completions_logprobs import completion_logprobs
from tests.host.manual_engine import DrivenHost, ManualBackend
from tests.server.replies import accepted

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"city": "北京"}'}}
CORPUS = (
    "", "plain words", "<think>\nweigh it 🤔\n</think>\n\nThe answer is 4.", "<think>cut before the e",
    "日本語と中文、混ざった text", "👨‍👩‍👧‍👦 family é\u0301 flags 🇫🇷",
    "stop here END and never this", "almost EN", "EN EN END",
    "a\n\nb\n\nc", "<think>END inside</think>answer END", '<tool_call>{"name": "f"}</tool_call>', "tail of spaces   \n",
)  # fmt: skip
PIECES = st.lists(
    st.sampled_from(["é", "😊", "你", "END", "EN", "<think>", "</think>", "\n", "a b", "\u200d", "x"]), max_size=12
)
ANSWERS = st.sampled_from(CORPUS) | PIECES.map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=10)
CAPABILITIES = Capabilities(
    name="manual", max_model_len=4096, max_batch_size=8, per_request_sampling=True, per_request_top_k=True,
    supports_logprobs=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenHost]:
    path = write_toy_checkpoint(tmp_path_factory.mktemp("toy"))
    with DrivenHost(path, ManualBackend(CAPABILITIES)) as driven:
        yield driven


def _frames(data: bytes) -> list[dict[str, Any]]:
    frames = data.split(b"\n\n")
    assert frames.pop() == b""
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]


def _added(chunks: list[dict[str, Any]], chat: bool) -> dict[str, Any]:
    """What the chunks of one choice add up to, in the shape of a plain choice."""
    texts = {"content": "", "reasoning_content": "", "text": ""}
    calls: dict[int, dict[str, Any]] = {}
    logprobs: dict[str, list[Any]] = {}
    ids: list[int] = []
    reasons = []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta = choice["delta"] if chat else {"text": choice["text"]}
        for name in texts:
            texts[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", ()):
            calls[call["index"]] = call
        for name, part in (choice["logprobs"] or {}).items():
            logprobs.setdefault(name, []).extend(part)
        ids += choice.get("token_ids", [])
        if choice["finish_reason"]:
            reasons.append(choice["finish_reason"])
    assert len(reasons) == 1, "every stream ends once"
    assert chunks[-1]["choices"][0]["finish_reason"] == reasons[0], "and says so last"
    return {"texts": texts, "calls": calls, "logprobs": logprobs, "ids": ids, "finish": reasons[0]}


def _plain(choice: Any, chat: bool) -> dict[str, Any]:
    made = json.loads(msgspec.json.encode(choice))
    message = made["message"] if chat else made
    return {
        "texts": {name: message.get(name) or "" for name in ("content", "reasoning_content", "text")},
        "calls": dict(enumerate({"index": i, **call} for i, call in enumerate(message.get("tool_calls", ())))),
        "logprobs": {name: part for name, part in (made["logprobs"] or {}).items() if part},
        "ids": made["token_ids"],
        "finish": made["finish_reason"],
    }


@settings(max_examples=250, deadline=None)
@given(
    answer=ANSWERS,
    cuts=CUTS,
    looks=st.lists(st.booleans(), min_size=12, max_size=12),
    chat=st.booleans(),
    wants_logprobs=st.booleans(),
    brings_call=st.booleans(),
    stop=st.sampled_from([(), ("END",), ("\n\n", "你")]),
    finish=st.sampled_from(["stop", "length"]),
)
def test_a_stream_is_the_plain_answer(
    driven: DrivenHost, answer: str, cuts: list[int], looks: list[bool], chat: bool, wants_logprobs: bool,
    brings_call: bool, stop: tuple[str, ...], finish: str,
) -> None:  # fmt: skip
    params = SamplingParams(stop=stop, n=2, logprobs=wants_logprobs)
    metadata = {"messages": [{"role": "user", "content": "x"}]} if chat else {}
    reader = driven.submit_request(GenerationRequest(prompt="x", sampling_params=params, metadata=metadata))
    kind = ChatReply if chat else CompletionReply
    reply = kind(accepted(reader.record.request), {"return_token_ids": True}, ServerSettings())
    ids = driven.ids(answer)
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    data: dict[int, bytes] = {0: b"", 1: b""}

    def look() -> None:
        for event in reader.take():
            data[event.choice_index] += reply.take(event.choice_index, event)

    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        driven.engine.events.post(_batch(reader.handles, ids[begin:end]))
        if looks[number % len(looks)]:
            look()
    if brings_call and chat:
        driven.engine.events.post(_bringing(reader.handles))
        look()
    driven.engine.events.post(StepBatch(finished=[Finish(handle=handle, reason=finish) for handle in reader.handles]))
    look()
    result = reader.record.result()
    if chat and answer.startswith("<think>\nweigh"):
        assert result.reasoning_content == "weigh it 🤔"
    for choice in result.choices:
        if chat:
            plain = _plain(chat_choice(choice.index, choice, with_token_ids=True), chat)
        else:
            made = completion_choice(choice.index, choice)
            made.token_ids = choice.token_ids
            plain = _plain(made, chat)
        assert _added(_frames(data[choice.index]), chat) == plain
    assert result.choices[0].text == result.choices[1].text


def _batch(handles: list[int], tokens: list[int]) -> StepBatch:
    """The same tokens for every handle, as steps interleave them."""
    rows = [(handle, token) for token in tokens for handle in handles]
    return StepBatch(
        handles=[handle for handle, _ in rows],
        tokens=[token for _, token in rows],
        flags=[0] * len(rows),
        logprobs=[TokenLogprob(row, -0.25, [(token, -0.25)]) for row, (_, token) in enumerate(rows)],
    )


def _bringing(handles: list[int]) -> StepBatch:
    return StepBatch(
        handles=handles,
        tokens=[0] * len(handles),
        flags=[int(TokenFlag.TEXT)] * len(handles),
        extras=[RowExtra(row=row, tool_calls=[CALL]) for row in range(len(handles))],
    )


def test_the_end_of_a_stream_is_the_documented_one() -> None:
    assert DONE == b"data: [DONE]\n\n"
    assert completion_logprobs(())["tokens"] == []
