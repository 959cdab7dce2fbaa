"""Parsed tool calls do not depend on how the engine batches or when a reader looks: a stream adds up to the answer."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketllm.host.record import whole_calls
from pocketllm.protocol import chat_call
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import TokenEvent
from tests.host.manual_engine import FULL, DrivenHost, ManualBackend
from tests.host.test_tool_calls import ASK, CALL, TOOLS
from tests.text import templates

WIDE = msgspec.structs.replace(FULL, max_model_len=4096, supports_tool_choice=True)
ANSWERS = st.sampled_from(
    [
        CALL, CALL + "\n" + CALL, "no call at all", CALL + " and prose", CALL[:-5], CALL.replace("Oslo", "北京 😊"),
        "<think>\nwhich? <tool_call>\n</think>\n\n" + CALL, "a < b <tool_ca", CALL.replace("3", "three"),
        "STOP " + CALL,
        CALL + "STOP", "",
    ]
)  # fmt: skip


@pytest.fixture(scope="module")
def driven(toy_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenHost]:
    folder = tmp_path_factory.mktemp("xml")
    shutil.copytree(toy_path, folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(templates.CHATML_XML)
    with DrivenHost(folder, ManualBackend(WIDE)) as driven:
        yield driven


def _run(driven: DrivenHost, ids: list[int], cuts: list[int], reason: str, drain_each: bool) -> dict[str, Any]:
    request = chat_call(ASK, SamplingParams(stop=("STOP",)), driven.host.capabilities, tools=TOOLS)
    reader = driven.submit_request(request)
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    events: list[TokenEvent] = []
    for begin, end in itertools.pairwise(edges):
        driven.engine.post(reader.handle, *ids[begin:end])
        if drain_each:
            events += reader.take()
    driven.engine.finish(reader.handle, reason)
    events += reader.take()
    choice = reader.record.result().choices[0]
    deltas = [delta for event in events for delta in event.metadata.get("tool_calls", [])]
    assert whole_calls(deltas) == choice.tool_calls
    assert "".join(event.text for event in events) == choice.text
    assert "".join(event.reasoning_content for event in events) == (choice.reasoning_content or "")
    assert events[-1].finish_reason == choice.finish_reason
    calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in choice.tool_calls]
    return {
        "text": choice.text,
        "reasoning": choice.reasoning_content,
        "calls": calls,
        "reason": choice.finish_reason,
        "tokens": choice.num_generated_tokens,
    }


@settings(max_examples=60, deadline=None)
@given(answer=ANSWERS, cuts=st.lists(st.integers(0, 400), max_size=8), reason=st.sampled_from(["stop", "length"]))
def test_any_batching_gives_the_same_calls(driven: DrivenHost, answer: str, cuts: list[int], reason: str) -> None:
    ids = driven.ids(answer)
    whole = _run(driven, ids, [], reason, drain_each=False)
    assert whole == _run(driven, ids, cuts, reason, drain_each=True)
    assert whole == _run(driven, ids, list(range(len(ids))), reason, drain_each=True)
    assert (whole["reason"] == "tool_calls") == bool(whole["calls"] and (reason == "stop" or "STOP" in answer))
