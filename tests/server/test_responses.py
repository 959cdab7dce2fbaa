"""``/v1/responses``: shapes, events, refusals, and the openai client."""

from __future__ import annotations

import inspect
import json
from typing import Any

import msgspec
import openai
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.resources.responses import AsyncResponses

from pocketllm.fields import NEVER
from pocketllm.types import LogprobEntry, TokenEvent, Usage
from pocketllm_server.answers.responses import ResponsesReply
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.wire.responses_request import ROWS, ResponsesBody, chat_body
from tests.server.fake_llm import EVERYTHING, FIXED, GUIDE, FakeLLM, Script
from tests.server.http_app import client_of, until
from tests.server.live import live
from tests.server.replies import accepted

PATH = "/v1/responses"
ABLE = msgspec.structs.replace(EVERYTHING, supports_tool_choice=True)
TOOL = {"type": "function", "name": "weather", "description": "Tell it.", "parameters": {"type": "object"}}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Ulm"}'},
}


def events_of(text: str) -> list[dict[str, Any]]:
    """Payloads of a finished stream; the event's name is its type, and the numbers have no gap."""
    frames = text.split("\n\n")
    assert frames[-1] == ""
    events = []
    for frame in frames[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def test_a_response_has_the_shape_of_openais() -> None:
    async with client_of(FakeLLM()) as client:
        response = await client.post(PATH, json={"input": "Hi", "metadata": {"a": "b"}, "model": "any"})
    assert response.status_code == 200
    body = response.json()
    assert body["id"].startswith("resp")
    assert (body["object"], body["status"], body["model"], body["store"]) == ("response", "completed", "tiny", False)
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": "Hello, world!", "annotations": [], "logprobs": []}]
    assert body["usage"]["output_tokens"] == 5
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + 5
    assert body["metadata"] == {"a": "b"}
    assert "x-pocketllm-ignored-fields" not in response.headers


async def test_fields_reach_the_request() -> None:
    model = FakeLLM(capabilities=ABLE)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    body = {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "instructions": "Be brief.", "max_output_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 4,
        "reasoning": {"effort": "high", "summary": "auto"}, "request_id": "mine", "tools": [TOOL],
        "tool_choice": "auto", "parallel_tool_calls": True, "truncation": "disabled", "store": False,
        "text": {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}},
        "include": ["reasoning.encrypted_content"],
    }  # fmt: skip
    async with client_of(model) as client:
        response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    (request,) = model.requests
    params = request.sampling_params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.seed) == (3, 0.5, 0.9, 7, 4)
    assert request.request_id == "mine"
    assert [(m["role"], m["content"]) for m in request.metadata["messages"]] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]
    assert request.metadata["tools"][0]["function"]["name"] == "weather"
    assert request.metadata["reasoning_effort"] == "high"
    assert request.metadata["thinking_mode"] == "thinking"
    assert params.response_format is not None
    assert params.response_format["json_schema"]["schema"] == schema
    answer = response.json()
    assert (answer["temperature"], answer["top_p"], answer["max_output_tokens"]) == (0.5, 0.9, 3)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][-1]["status"] == "incomplete"


ITEMS: list[tuple[Any, list[dict[str, Any]]]] = [
    ("Hi", [{"role": "user", "content": "Hi"}]),
    ([{"type": "message", "role": "developer", "content": "D"}], [{"role": "system", "content": "D"}]),
    (
        [
            {"role": "user", "content": "weather?"},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "time", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
            {"type": "function_call", "call_id": "c3", "name": "time", "arguments": "{}"},
        ],
        [
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Let me see."}],
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
                    {"id": "c2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sunny", "name": "weather"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "input_text", "text": "noon"}], "name": "time"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c3", "type": "function", "function": {"name": "time", "arguments": "{}"}}],
            },
        ],
    ),
    (
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}],
        [{"role": "assistant", "content": None, "reasoning_content": "short"}],
    ),
]  # fmt: skip


@pytest.mark.parametrize("given_input, messages", ITEMS)
def test_input_items_become_messages(given_input: Any, messages: list[dict[str, Any]]) -> None:
    assert chat_body({"input": given_input})["messages"] == messages


def test_instructions_and_leading_system_messages_are_one_message() -> None:
    fields = {"instructions": "A", "input": [{"role": "developer", "content": "B"}, {"role": "user", "content": "C"}]}
    first, second = chat_body(fields)["messages"]
    assert [part["text"] for part in first["content"]] == ["A", "", "B"]
    assert second == {"role": "user", "content": "C"}


async def test_stream_tells_every_change() -> None:
    script = Script(texts=("Hel", "lo"), reasoning="because", tool_calls=(CALL,), finish="tool_calls")
    async with client_of(FakeLLM(script)) as client:
        response = await client.post(PATH, json={"input": "Hi", "stream": True})
        whole = (await client.post(PATH, json={"input": "Hi"})).json()
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_item.added", "function_call_arguments.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    last = events[-1]["response"]
    assert last["status"] == "completed"
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call"]
    assert last["output"][2]["arguments"] == '{"city": "Ulm"}'
    assert last["output"][2]["call_id"] == "call_1"
    assert without_ids(last["output"]) == without_ids(whole["output"])
    assert last["usage"] == whole["usage"]
    assert events[0]["response"]["output"] == []


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in item.items() if key != "id"} for item in items]


@given(
    st.text(min_size=1, max_size=12),
    st.text(max_size=6),
    st.lists(st.text(min_size=1, max_size=8), max_size=3),
    st.randoms(use_true_random=False),
)
def test_any_batching_adds_up_to_the_same_answer(text: str, reasoning: str, calls: list[str], random: Any) -> None:
    pieces: list[TokenEvent] = [TokenEvent(request_id="r", reasoning_content=char) for char in reasoning]
    pieces += [TokenEvent(request_id="r", text=char) for char in text]
    for index, arguments in enumerate(calls):
        head = {"index": index, "id": f"c{index}", "type": "function", "function": {"name": "f", "arguments": ""}}
        pieces.append(TokenEvent(request_id="r", metadata={"tool_calls": [head]}))
        pieces += [
            TokenEvent(request_id="r", metadata={"tool_calls": [{"index": index, "function": {"arguments": char}}]})
            for char in arguments
        ]
    pieces.append(TokenEvent(request_id="r", finish_reason="stop", usage=Usage(prompt_tokens=3, completion_tokens=5)))
    outputs = []
    for cuts in (set(), {n for n in range(len(pieces)) if random.random() < 0.5}, set(range(len(pieces)))):
        reply = ResponsesReply(accepted(), {}, ServerSettings())
        told: list[dict[str, Any]] = reply.opened()
        batch: list[TokenEvent] = []
        for number, piece in enumerate(pieces):
            batch.append(piece)
            if number in cuts or number == len(pieces) - 1:
                told += reply.grown(joined(batch))
                batch = []
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        outputs.append(without_ids(reply.response.output))
        assert replayed(told) == reply.response.output
    assert outputs[0] == outputs[1] == outputs[2]


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


def replayed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a reader has at the end that believes the deltas, checked against what the ``done`` events repeat."""
    items: dict[int, dict[str, Any]] = {}
    done: dict[int, dict[str, Any]] = {}
    for event in events:
        index = event.get("output_index", -1)
        match event["type"]:
            case "response.output_item.added":
                items[index] = json.loads(json.dumps(event["item"]))
            case "response.content_part.added":
                items[index]["content"].append(dict(event["part"]))
            case "response.output_text.delta" | "response.reasoning_text.delta":
                items[index]["content"][0]["text"] += event["delta"]
            case "response.function_call_arguments.delta":
                items[index]["arguments"] += event["delta"]
            case "response.output_item.done":
                assert event["item"] == {**items[index], "status": event["item"]["status"]}
                done[index] = event["item"]
    return [done[index] for index in sorted(done)]


async def test_responses_carry_log_probabilities_whole_and_streamed() -> None:
    body = {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with client_of(FakeLLM(Script(texts=("é", "b")))) as client:
        whole = (await client.post(PATH, json=body)).json()
        events = events_of((await client.post(PATH, json={**body, "stream": True})).text)
    entries = whole["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries] == ["é", "b"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2]
    streamed = [entry for event in events for entry in event.get("logprobs", ()) if event["type"].endswith("delta")]
    assert streamed == entries


def test_a_token_without_text_keeps_its_log_probability() -> None:
    reply = ResponsesReply(accepted(), {}, ServerSettings())
    entry = LogprobEntry(token="", logprob=-1.0, bytes=[0xF0], token_id=3)
    reply.grown(TokenEvent(request_id="r", logprobs=(entry,)))
    assert len(reply.response.output[0]["content"][0]["logprobs"]) == 1


async def test_empty_answer_is_an_empty_message() -> None:
    async with client_of(FakeLLM(Script(texts=()))) as client:
        whole = (await client.post(PATH, json={"input": "Hi"})).json()
        events = events_of((await client.post(PATH, json={"input": "Hi", "stream": True})).text)
    assert [item["content"][0]["text"] for item in whole["output"]] == [""]
    assert without_ids(events[-1]["response"]["output"]) == without_ids(whole["output"])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "c"}, "conversation"),
    ({"store": True}, "store"),
    ({"background": True}, "background"),
    ({"background_options": {}}, "background_options"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"moderation": {}}, "moderation"),
    ({"image": {}}, "image"),
    ({"access_programs": {}}, "access_programs"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"reasoning": {"generate_summary": "concise"}}, "reasoning.generate_summary"),
    ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"reasoning": {"effort": "much"}}, "reasoning"),
    ({"include": ["file_search_call.results"]}, "include"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": True}, "temperature"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [{}]}, "input"),
    ({"input": [{"type": "item_reference", "id": "i"}]}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
    ({"input": [{"role": "judge", "content": "x"}]}, "input"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]}, "input"),
    ({"input": None}, "input"),
]


@pytest.mark.parametrize("fields, param", REFUSED)
async def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    async with client_of(FakeLLM(capabilities=ABLE)) as client:
        response = await client.post(PATH, json={"input": "Hi", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["type"] == "invalid_request_error"


NEUTRAL: list[dict[str, Any]] = [
    {"store": False}, {"background": False}, {"context_management": []}, {"truncation": "disabled"},
    {"text": {"verbosity": "medium", "format": {"type": "text"}}}, {"reasoning": {"effort": "none"}},
    {"reasoning": {"mode": "standard"}},
    {"previous_response_id": None}, {"user": "u"}, {"service_tier": "flex"}, {"max_tool_calls": 3}, {"tools": []},
    {"stream_options": {"include_obfuscation": False}}, {"safety_identifier": "s"}, {"prompt_cache_key": "k"},
]  # fmt: skip


@pytest.mark.parametrize("fields", NEUTRAL, ids=[next(iter(fields)) for fields in NEUTRAL])
@pytest.mark.parametrize("capabilities", [EVERYTHING, GUIDE, FIXED], ids=["everything", "guide", "fixed"])
async def test_neutral_values_are_accepted(fields: dict[str, Any], capabilities: Any) -> None:
    async with client_of(FakeLLM(capabilities=capabilities)) as client:
        response = await client.post(PATH, json={"input": "Hi", **fields})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"temperature": 0.1}, "temperature"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_what_the_engine_cannot_do_is_refused_in_the_words_of_this_endpoint(
    fields: dict[str, Any], param: str
) -> None:
    async with client_of(FakeLLM(capabilities=FIXED)) as client:
        response = await client.post(PATH, json={"input": "Hi", **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert f'"{param}"' in error["message"]


async def test_unknown_fields_are_named_or_refused() -> None:
    async with client_of(FakeLLM()) as client:
        response = await client.post(PATH, json={"input": "Hi", "colour": "red"})
        assert response.status_code == 200
        assert response.headers["x-pocketllm-ignored-fields"] == "colour"
    async with client_of(FakeLLM(), strict_fields=True) as client:
        response = await client.post(PATH, json={"input": "Hi", "colour": "red"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "colour"


@pytest.mark.parametrize(
    "script, code", [(Script(fail_after=2), "engine_error"), (Script(raise_after=2), "internal_error")]
)
async def test_failure_in_mid_stream_ends_the_response(script: Script, code: str) -> None:
    async with client_of(FakeLLM(script)) as client:
        events = events_of((await client.post(PATH, json={"input": "Hi", "stream": True})).text)
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == code
    assert failed["output"][0]["status"] == "incomplete"
    assert failed["output"][0]["content"][0]["text"] == "Hello,"


async def test_failure_without_a_stream_is_an_error() -> None:
    async with client_of(FakeLLM(Script(fail_after=1))) as client:
        response = await client.post(PATH, json={"input": "Hi"})
        page = (await client.get("/metrics")).text
    assert response.status_code == 500
    assert 'pocketllm_requests_total{outcome="engine_error"} 1' in page


def test_every_parameter_of_the_client_has_a_field_and_a_row() -> None:
    of_the_client = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    parameters = set(inspect.signature(AsyncResponses.create).parameters) - of_the_client
    assert not parameters - set(ResponsesBody.__struct_fields__)
    assert {row.name.partition(".")[0] for row in ROWS} == set(ResponsesBody.__struct_fields__)
    for row in ROWS:
        assert bool(row.needs == NEVER) == bool(row.remedy)


# -- the openai client ------------------------------------------------------------------------------------------------


class Person(pydantic.BaseModel):
    name: str
    age: int


async def test_the_openai_client_reads_a_parsed_response() -> None:
    script = Script(texts=('{"name": "Ada",', ' "age": 36}'), reasoning="hm")
    async with (
        live(FakeLLM(script, ABLE)) as server,
        openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        answer = await client.responses.create(model="tiny", input="Who?", store=False)
        assert answer.output_text == '{"name": "Ada", "age": 36}'
        assert answer.usage is not None
        assert answer.usage.output_tokens == 3
        parsed = await client.responses.parse(model="tiny", input="Who?", text_format=Person)
        assert parsed.output_parsed == Person(name="Ada", age=36)
        async with client.responses.stream(model="tiny", input="Who?", text_format=Person) as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert "".join(deltas) == '{"name": "Ada", "age": 36}'
        assert final.output_parsed == Person(name="Ada", age=36)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="tiny", input="Hi", previous_response_id="resp_0")
        assert caught.value.param == "previous_response_id"


async def test_openai_client_runs_a_tool() -> None:
    model = FakeLLM(Script(texts=(), tool_calls=(CALL,), finish="tool_calls"), ABLE)
    async with (
        live(model) as server,
        openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        tools: Any = [TOOL]
        conversation: Any = [{"role": "user", "content": "Weather in Ulm?"}]
        first = await client.responses.create(model="tiny", input=conversation, tools=tools)
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert json.loads(call.arguments) == {"city": "Ulm"}
        conversation += [item.model_dump(exclude_none=True) for item in first.output]
        conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
        model.script = Script(texts=("It is ", "sunny."))
        stream = await client.responses.create(model="tiny", input=conversation, tools=tools, stream=True)
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
    assert "".join(texts) == "It is sunny."
    messages = model.requests[-1].metadata["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "call_1"


async def test_openai_client_stream_closed_early_cancels() -> None:
    model = FakeLLM(Script(endless=True, pause_s=0.01))
    async with (
        live(model) as server,
        openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.responses.create(model="tiny", input="Hi", stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        await until(lambda: not model.active)
        assert len(model.left) == 1
        assert server.app.service.models.num_active == 0
