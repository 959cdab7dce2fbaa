"""``/v1/messages``: shapes, events, refusals in Anthropic's form, and the anthropic client."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import pytest
import pytest_asyncio
from anthropic.resources.messages import AsyncMessages
from hypothesis import given
from hypothesis import strategies as st

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from pocketllm.types import TokenEvent, Usage
from pocketllm_server.answers.messages import MessagesReply
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.wire.messages_answer import error_body
from pocketllm_server.wire.messages_request import ROWS, SHARED_ROWS, CountTokensBody, MessagesBody, chat_body
from tests.server.fake_llm import EVERYTHING, FIXED, FakeLLM, Script
from tests.server.http_app import client_of, until
from tests.server.live import Live, live
from tests.server.replies import accepted

PATH = "/v1/messages"
ABLE = msgspec.structs.replace(EVERYTHING, supports_tool_choice=True)
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64, "model": "any"}
TOOL: Any = {"name": "weather", "description": "Tell it.", "input_schema": {"type": "object", "properties": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}


def events_of(text: str) -> list[dict[str, Any]]:
    frames = text.split("\n\n")
    assert frames[-1] == ""
    events = []
    for frame in frames[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


async def test_a_message_has_the_shape_of_anthropics() -> None:
    model = FakeLLM()
    async with client_of(model) as client:
        response = await client.post(PATH, json=HELLO)
    assert response.status_code == 200
    body = response.json()
    assert body.pop("id").startswith("msg")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello, world!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len((model.requests[0].prompt or "").split()),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 5,
        },
    }


async def test_fields_reach_the_request() -> None:
    model = FakeLLM(capabilities=ABLE)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    body = {
        **HELLO, "max_tokens": 2, "system": [{**text("Be brief."), "cache_control": {"type": "ephemeral"}}],
        "stop_sequences": ["END"], "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "request_id": "mine",
        "tools": [TOOL], "tool_choice": {"type": "auto"}, "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema}},
        "metadata": {"user_id": "u"}, "service_tier": "auto",
    }  # fmt: skip
    async with client_of(model) as client:
        response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    (request,) = model.requests
    params = request.sampling_params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.seed) == (2, 0.5, 0.9, 7, 3)
    assert params.stop == ("END",)
    assert request.request_id == "mine"
    assert [(m["role"], m["content"]) for m in request.metadata["messages"]] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]
    assert request.metadata["tools"][0]["function"] == {
        "name": "weather", "description": "Tell it.", "parameters": TOOL["input_schema"],
    }  # fmt: skip
    assert (request.metadata["thinking_mode"], request.metadata["reasoning_effort"]) == ("thinking", "low")
    assert params.response_format is not None
    assert params.response_format["json_schema"]["schema"] == schema
    assert response.json()["stop_reason"] == "max_tokens"


CHOICES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "any"}, {"tool_choice": "required"}),
    ({"type": "none"}, {"tool_choice": "none"}),
    (
        {"type": "tool", "name": "weather"},
        {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ),
    ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
]


@pytest.mark.parametrize("choice, chat", CHOICES)
def test_tool_choices_of_anthropic_become_those_of_chat(choice: dict[str, Any], chat: dict[str, Any]) -> None:
    body = chat_body({**HELLO, "tools": [{**TOOL, "strict": True}], "tool_choice": choice})
    assert {name: body.get(name) for name in chat} == chat
    assert body["tools"][0]["function"]["strict"] is True


@pytest.mark.parametrize(
    "thinking, mode", [({"type": "disabled"}, "chat"), ({"type": "enabled", "budget_tokens": 2048}, "thinking")]
)
def test_thinking_of_anthropic_becomes_a_mode(thinking: dict[str, Any], mode: str) -> None:
    assert chat_body({**HELLO, "thinking": thinking})["thinking_mode"] == mode


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


MESSAGES: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    (
        [{"role": "user", "content": "a"}, {"role": "user", "content": [text("b"), text("c")]}],
        [{"role": "user", "content": [text("a"), text("b"), text("c")]}],
    ),
    (
        [
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    text("Let me see."),
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Ulm"}},
                    {"type": "tool_use", "id": "t2", "name": "time", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                    {"type": "tool_result", "tool_use_id": "t2", "content": [text("no clock")], "is_error": True},
                    text("And?"),
                ],
            },
        ],
        [
            {"role": "user", "content": [text("weather?")]},
            {
                "role": "assistant",
                "content": [text("Let me see.")],
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'}},
                    {"id": "t2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "t1", "content": [text("sunny")], "name": "weather"},
            {"role": "tool", "tool_call_id": "t2", "content": [text("Error:"), text("no clock")], "name": "time"},
            {"role": "user", "content": [text("And?")]},
        ],
    ),
    (
        [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": [text("b")]}, HELLO["messages"][0]],
        [{"role": "assistant", "content": [text("a"), text("b")]}, {"role": "user", "content": [text("Hi")]}],
    ),
]


@pytest.mark.parametrize("messages, chat", MESSAGES)
def test_blocks_become_chat_messages(messages: list[dict[str, Any]], chat: list[dict[str, Any]]) -> None:
    before = json.dumps(messages)
    assert chat_body({**HELLO, "messages": messages})["messages"] == chat
    assert json.dumps(messages) == before


def test_a_final_assistant_message_is_continued() -> None:
    messages = [HELLO["messages"][0], {"role": "assistant", "content": "Well, "}]
    body = chat_body({**HELLO, "messages": messages})
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


async def test_stream_tells_every_change() -> None:
    script = Script(texts=("Hel", "lo"), reasoning="because", tool_calls=(CALL,), finish="tool_calls")
    async with client_of(FakeLLM(script)) as client:
        response = await client.post(PATH, json={**HELLO, "stream": True})
        whole = (await client.post(PATH, json=HELLO)).json()
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    assert [event["type"] for event in events] == [
        "message_start", "ping",
        "content_block_start", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[0]["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"] == whole["usage"]
    assert replayed(events) == whole["content"]
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    assert whole["content"][2] == {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Ulm"}}


def replayed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a reader has at the end; blocks must come one after the other."""
    blocks: list[dict[str, Any]] = []
    arguments: dict[int, str] = {}
    is_open = False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            is_open = True
        elif event["type"] == "content_block_delta":
            assert is_open
            assert event["index"] == len(blocks) - 1
            delta = dict(event["delta"])
            kind = delta.pop("type")
            if kind == "input_json_delta":
                arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
            else:
                (key,) = delta
                blocks[-1][key] += delta[key]
        elif event["type"] == "content_block_stop":
            assert is_open
            assert event["index"] == len(blocks) - 1
            is_open = False
    assert not is_open
    for index, written in arguments.items():
        blocks[index]["input"] = json.loads(written)
    return blocks


@given(
    st.text(max_size=12),
    st.text(max_size=6),
    st.lists(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), max_size=3),
    st.randoms(use_true_random=False),
)
def test_any_batching_adds_up_to_the_same_message(
    words: str, reasoning: str, calls: list[dict[str, int]], random: Any
) -> None:
    pieces: list[TokenEvent] = [TokenEvent(request_id="r", reasoning_content=char) for char in reasoning]
    pieces += [TokenEvent(request_id="r", text=char) for char in words]
    for index, arguments in enumerate(calls):
        head = {"index": index, "id": f"c{index}", "type": "function", "function": {"name": "f", "arguments": ""}}
        pieces.append(TokenEvent(request_id="r", metadata={"tool_calls": [head]}))
        pieces += [
            TokenEvent(request_id="r", metadata={"tool_calls": [{"index": index, "function": {"arguments": char}}]})
            for char in json.dumps(arguments)
        ]
    pieces.append(TokenEvent(request_id="r", finish_reason="stop", usage=Usage(prompt_tokens=3, completion_tokens=5)))
    contents = []
    for cuts in (set(), {n for n in range(len(pieces)) if random.random() < 0.5}, set(range(len(pieces)))):
        reply = MessagesReply(accepted(), {}, ServerSettings())
        told = reply.opened()
        batch: list[TokenEvent] = []
        for number, piece in enumerate(pieces):
            batch.append(piece)
            if number in cuts or number == len(pieces) - 1:
                told += reply.grown(joined(batch))
                batch = []
        contents.append(reply.message.content)
        assert replayed(told) == reply.message.content
    assert contents[0] == contents[1] == contents[2]


def joined(batch: list[TokenEvent]) -> TokenEvent:
    calls = [call for event in batch for call in event.metadata.get("tool_calls", ())]
    return TokenEvent(
        request_id="r",
        text="".join(event.text for event in batch),
        reasoning_content="".join(event.reasoning_content for event in batch),
        finish_reason=batch[-1].finish_reason,
        usage=batch[-1].usage,
        metadata={"tool_calls": calls} if calls else {},
    )


def test_arguments_that_were_cut_short_are_shown_as_they_are() -> None:
    reply = MessagesReply(accepted(), {}, ServerSettings())
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"city": "U'}}
    reply.grown(TokenEvent(request_id="r", metadata={"tool_calls": [call]}, finish_reason="length"))
    assert reply.message.content[0]["input"] == {"unparsed_arguments": '{"city": "U'}
    assert reply.message.stop_reason == "max_tokens"


def test_a_matched_stop_sequence_is_told() -> None:
    reply = MessagesReply(accepted(), {}, ServerSettings())
    events = reply.grown(TokenEvent(request_id="r", text="a", finish_reason="stop", metadata={"stop_sequence": "END"}))
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}, "messages"),
    ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]}, "messages"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}, "tool_result"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
    ({"system": [{"type": "image"}]}, "system"),
    ({"system": 5}, "system"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
    ({"tools": [{"name": "x"}]}, "tools"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools"),
    ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools"),
    ({"tool_choice": {"type": "some"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice"),
    ({"thinking": {"type": "sometimes"}}, "thinking"),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
    ({"container": "c"}, "container"),
    ({"diagnostics": {}}, "diagnostics"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ({"context_management": {"edits": []}}, "context_management"),
    ({"speed": "fast"}, "speed"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"stop_sequences": "END"}, "stop_sequences"),
]


@pytest.mark.parametrize("fields, named", REFUSED)
async def test_refusals_have_anthropics_shape_and_name_the_field(fields: dict[str, Any], named: str) -> None:
    async with client_of(FakeLLM(capabilities=ABLE)) as client:
        response = await client.post(PATH, json={**HELLO, **fields})
    assert response.status_code == 400, response.text
    body = response.json()
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert named in body["error"]["message"]


async def test_what_the_engine_cannot_do_is_refused_in_the_words_of_this_endpoint() -> None:
    fields = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}
    async with client_of(FakeLLM(capabilities=FIXED)) as client:
        response = await client.post(PATH, json={**HELLO, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith('"output_config.format"')


async def test_a_budget_for_thinking_is_named_as_unenforced_and_refused_where_fields_are_strict() -> None:
    body = {**HELLO, "thinking": {"type": "enabled", "budget_tokens": 2048}}
    async with client_of(FakeLLM()) as client:
        response = await client.post(PATH, json=body)
        assert response.status_code == 200
        assert response.headers["x-pocketllm-ignored-fields"] == "thinking.budget_tokens"
    async with client_of(FakeLLM(), strict_fields=True) as client:
        response = await client.post(PATH, json=body)
    assert response.status_code == 400
    assert response.json()["type"] == "error"


async def test_not_json_is_415_in_anthropics_shape() -> None:
    async with client_of(FakeLLM()) as client:
        response = await client.post(PATH, content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 415
    assert response.json()["type"] == "error"


@pytest.mark.parametrize("script", [Script(fail_after=2), Script(raise_after=2)], ids=["engine", "bug"])
async def test_failure_in_mid_stream_is_an_error_event(script: Script) -> None:
    async with client_of(FakeLLM(script)) as client:
        events = events_of((await client.post(PATH, json={**HELLO, "stream": True})).text)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert [event["type"] for event in events].count("error") == 1
    assert events[-2]["type"] == "content_block_delta"


async def test_cancellation_by_id_ends_the_stream_with_an_error_event() -> None:
    async with live(FakeLLM(Script(endless=True, pause_s=0.01))) as server, client_for(server) as client:
        stream = await client.messages.create(**HELLO, stream=True)
        start = await anext(aiter(stream))
        assert start.type == "message_start"
        await client.delete(f"/v1/requests/{start.message.id}", cast_to=object)
        with pytest.raises(anthropic.APIStatusError, match="cancelled"):
            _ = [event async for event in stream]


STATUSES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
            404: "not_found_error", 409: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error",
            499: "api_error", 500: "api_error", 503: "overloaded_error", 504: "timeout_error"}  # fmt: skip


@pytest.mark.parametrize("status, kind", STATUSES.items())
def test_each_status_has_anthropics_error_type(status: int, kind: str) -> None:
    assert error_body(status, "m").error == {"type": kind, "message": "m"}


def test_every_parameter_of_the_client_has_a_field_and_a_row() -> None:
    # output_format is a Python type that the client sends as output_config.format.
    of_the_client = {"self", "extra_headers", "extra_query", "extra_body", "timeout", "output_format"}
    for method, shape, rows in (
        (AsyncMessages.create, MessagesBody, ROWS),
        (AsyncMessages.count_tokens, CountTokensBody, SHARED_ROWS),
    ):
        assert not set(inspect.signature(method).parameters) - of_the_client - set(shape.__struct_fields__)
        assert {row.name.partition(".")[0] for row in rows} == set(shape.__struct_fields__)


# -- the anthropic client ---------------------------------------------------------------------------------------------


def client_for(server: Live) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)


async def test_the_anthropic_client_reads_an_answer_and_its_stream() -> None:
    async with live(FakeLLM(Script(reasoning="hm"))) as server, client_for(server) as client:
        answer = await client.messages.create(**HELLO)
        assert [block.type for block in answer.content] == ["thinking", "text"]
        assert answer.stop_reason == "end_turn"
        async with client.messages.stream(**HELLO) as stream:
            texts = [piece async for piece in stream.text_stream]
            final = await stream.get_final_message()
        assert "".join(texts) == "Hello, world!"
        assert final.usage.output_tokens == answer.usage.output_tokens == 5
        assert [block.type for block in final.content] == ["thinking", "text"]
        with pytest.raises(anthropic.BadRequestError, match="container"):
            await client.messages.create(**HELLO, container="c")


async def test_anthropic_client_runs_a_tool() -> None:
    model = FakeLLM(Script(texts=("One moment.",), tool_calls=(CALL,), finish="tool_calls"), ABLE)
    async with live(model) as server, client_for(server) as client:
        fields: dict[str, Any] = {**HELLO, "tools": [TOOL]}
        async with client.messages.stream(**fields) as stream:
            first = await stream.get_final_message()
        assert first.stop_reason == "tool_use"
        call = first.content[1]
        assert call.type == "tool_use"
        assert call.input == {"city": "Ulm"}
        model.script = Script(texts=("It is ", "sunny."))
        fields["messages"] = [
            *HELLO["messages"],
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]},
        ]
        second = await client.messages.create(**fields)
    assert second.content[0].type == "text"
    assert second.content[0].text == "It is sunny."
    messages = model.requests[-1].metadata["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"]


async def test_anthropic_client_stream_closed_early_cancels() -> None:
    model = FakeLLM(Script(endless=True, pause_s=0.01))
    async with live(model) as server, client_for(server) as client:
        stream = await client.messages.create(**HELLO, stream=True)
        async for event in stream:
            if event.type == "content_block_delta":
                break
        await stream.close()
        await until(lambda: not model.active)
        assert len(model.left) == 1


# -- the whole pipeline -----------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def echo(smollm2_path: Path) -> AsyncIterator[Live]:
    async with live(AsyncLLM(EngineArgs(model=str(smollm2_path), backend="echo", placement="thread"))) as server:
        yield server


async def test_tokens_are_counted_as_they_are_used(echo: Live) -> None:
    messages: Any = [{"role": "user", "content": "one two three four"}]
    async with client_for(echo) as client:
        counted = await client.messages.count_tokens(model="tiny", messages=messages, system="Repeat.")
        answer = await client.messages.create(model="tiny", messages=messages, system="Repeat.", max_tokens=50)
    assert counted.input_tokens == answer.usage.input_tokens > 10
    assert answer.content[0].type == "text"
    assert answer.content[0].text == "one two three four"
