"""``/tokenize``, ``/detokenize``, ``/apply-template`` and the token counts, over a real tokenizer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from pocketllm.checkpoint import open_checkpoint
from pocketllm_server.app import create_app
from pocketllm_server.config.settings import ServerSettings
from tests.server.fake_llm import FakeLLM
from tests.server.http_app import client_of, running, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
]
RENDERED = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(smollm2_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    model = AsyncLLM(EngineArgs(model=str(smollm2_path), backend="echo", placement="thread"))
    app = create_app(model, ServerSettings(served_model_name="tiny"))
    async with running(app):
        await until(lambda: app.service.models.default.readiness.verdict().ready, 60)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client


async def ask(client: httpx.AsyncClient, path: str, **fields: Any) -> dict[str, Any]:
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_text_becomes_tokens_and_text_again(client: httpx.AsyncClient, smollm2_path: Path) -> None:
    text = "Grüße, 世界! <|im_end|> 😀"
    body = await ask(client, "/tokenize", content=text)
    tokenizer = open_checkpoint(smollm2_path).tokenizer()
    assert body["tokens"] == tokenizer.encode(text, add_bos=False)
    assert body["count"] == len(body["tokens"])
    assert body["max_model_len"] == 8192
    assert await ask(client, "/detokenize", tokens=body["tokens"]) == {"content": text}
    without = await ask(client, "/detokenize", tokens=body["tokens"], skip_special=True)
    assert without == {"content": text.replace("<|im_end|>", "")}
    plain = await ask(client, "/tokenize", content=text, parse_special=False)
    assert plain["count"] > body["count"]
    assert (await ask(client, "/tokenize", content="", add_special=True))["tokens"] == []


async def test_pieces_are_text_or_bytes(client: httpx.AsyncClient) -> None:
    text = "Hello 世界😀"
    body = await ask(client, "/tokenize", content=text, with_pieces=True)
    pieces = [piece["piece"] for piece in body["tokens"]]
    assert any(isinstance(piece, list) for piece in pieces)
    assert b"".join(bytes(piece) if isinstance(piece, list) else piece.encode() for piece in pieces) == text.encode()


async def test_messages_are_rendered_first(client: httpx.AsyncClient) -> None:
    rendered = await ask(client, "/apply-template", messages=MESSAGES)
    assert rendered == {"prompt": RENDERED}
    shorter = await ask(client, "/apply-template", messages=MESSAGES, add_generation_prompt=False)
    assert shorter["prompt"] == RENDERED.removesuffix("<|im_start|>assistant\n")
    tokens = await ask(client, "/tokenize", messages=MESSAGES)
    assert tokens["tokens"] == (await ask(client, "/tokenize", content=RENDERED))["tokens"]


async def test_counts_are_what_requests_are_charged(client: httpx.AsyncClient) -> None:
    counted = await ask(client, "/v1/responses/input_tokens", input="Hi", instructions="Be brief.")
    answer = await ask(client, "/v1/responses", input="Hi", instructions="Be brief.")
    chat = await ask(client, "/v1/chat/completions", messages=MESSAGES)
    assert counted == {"object": "response.input_tokens", "input_tokens": answer["usage"]["input_tokens"]}
    assert counted["input_tokens"] == chat["usage"]["prompt_tokens"]
    anthropic = await ask(client, "/v1/messages/count_tokens", messages=MESSAGES[1:], system="Be brief.")
    assert anthropic == {"input_tokens": counted["input_tokens"]}


async def test_a_prompt_beyond_the_context_is_counted_all_the_same(client: httpx.AsyncClient) -> None:
    counted = await ask(client, "/v1/responses/input_tokens", input="word " * 9000)
    assert counted["input_tokens"] > 9000
    response = await client.post("/v1/responses", json={"input": "word " * 9000})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input"
    assert response.json()["error"]["code"] == "context_length_exceeded"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "content"),
    ("/tokenize", {"content": "a", "messages": MESSAGES}, "content"),
    ("/tokenize", {"messages": MESSAGES, "add_special": True}, "add_special"),
    ("/tokenize", {"content": 5}, "content"),
    ("/tokenize", {"content": "a", "with_pieces": 1}, "with_pieces"),
    ("/tokenize", {"messages": [{"role": "x", "content": "y"}]}, "messages"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": [10**6]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [True]}, "tokens"),
    ("/apply-template", {}, "messages"),
    ("/apply-template", {"messages": []}, "messages"),
    ("/apply-template", {"messages": MESSAGES, "thinking_mode": "often"}, "thinking_mode"),
]


@pytest.mark.parametrize("path, fields, param", REFUSED)
async def test_refusals_name_the_field(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    response = await client.post(path, json=fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


async def test_unknown_fields_are_named(client: httpx.AsyncClient) -> None:
    response = await client.post("/tokenize", json={"content": "a", "colour": 1})
    assert response.headers["x-pocketllm-ignored-fields"] == "colour"


async def test_a_model_without_a_tokenizer_says_so() -> None:
    async with client_of(FakeLLM()) as client:
        response = await client.post("/tokenize", json={"content": "a"})
    assert response.status_code == 400
    assert "no tokenizer" in response.json()["error"]["message"]
