"""What ``GET /v1/models`` lists for the endpoints in other words is what their requests are served."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from pocketllm.types import Capabilities
from pocketllm_server.wire import messages_request, responses_request
from tests.server.fake_llm import EVERYTHING, FIXED, GUIDE, FakeLLM
from tests.server.http_app import client_of

PATHS = {"responses": "/v1/responses", "messages": "/v1/messages"}
ROWS = {"responses": responses_request.ROWS, "messages": messages_request.ROWS}
NEEDS = {endpoint: {row.name: row.capability for row in table if row.capability} for endpoint, table in ROWS.items()}
PLAIN: dict[str, dict[str, Any]] = {
    "responses": {"input": "Hi"},
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
}
FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
TOOL: dict[str, Any] = {"name": "f", "input_schema": {"type": "object"}}
# A value of each field that wants something of the engine, with what has to stand beside it.
WANTING: dict[str, dict[str, dict[str, Any]]] = {
    "responses": {
        "tool_choice": {"tool_choice": "none", "tools": [FUNCTION]},
        "parallel_tool_calls": {"parallel_tool_calls": False, "tools": [FUNCTION]},
        "text": {"text": {"format": {"type": "json_object"}}},
        "include": {"include": [responses_request.LOGPROBS]},
        "top_logprobs": {"top_logprobs": 2},
    },
    "messages": {"tool_choice": {"tool_choice": {"type": "none"}, "tools": [TOOL]}},
}


async def listed(client: httpx.AsyncClient) -> dict[str, list[str]]:
    (card,) = (await client.get("/v1/models")).json()["data"]
    fields: dict[str, list[str]] = card["supported_fields"]
    return fields


@pytest.mark.parametrize("capabilities", [EVERYTHING, GUIDE, FIXED], ids=["everything", "guide", "fixed"])
async def test_the_list_of_supported_fields_is_true(capabilities: Capabilities) -> None:
    async with client_of(FakeLLM(capabilities=capabilities)) as client:
        told = await listed(client)
        assert set(told) == {"chat", "completions", "responses", "messages"}
        for endpoint, path in PATHS.items():
            assert set(WANTING[endpoint]) == set(NEEDS[endpoint])
            for name, fields in WANTING[endpoint].items():
                response = await client.post(path, json={**PLAIN[endpoint], **fields})
                assert response.status_code in (200, 400), response.text
                assert (response.status_code == 200) is (name in told[endpoint]), (name, response.text)


@pytest.mark.parametrize("endpoint", PATHS)
async def test_every_field_that_is_acted_on_is_listed(endpoint: str) -> None:
    async with client_of(FakeLLM(capabilities=EVERYTHING)) as client:
        told = (await listed(client))[endpoint]
    assert told == [row.name for row in ROWS[endpoint] if not row.inert and not row.needs]
    assert set(PLAIN[endpoint]) <= set(told)
    assert not {"model", "store", "container", "background"} & set(told)
    assert set(NEEDS[endpoint].values()) <= set(Capabilities.__struct_fields__)
