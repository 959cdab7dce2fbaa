"""litellm, unchanged, against the whole stack: its ``openai/`` provider is what most gateways put in front of us."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pocketllm.async_llm import AsyncLLM
from pocketllm.engine_args import EngineArgs
from pocketllm.testing.toy_checkpoint import write_toy_checkpoint
from tests.server.http_app import until
from tests.server.live import Live, live
from tests.server.test_langchain import CALL, WEATHER
from tests.text import templates

# Before its import: otherwise it fetches a list of prices from the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

# The client's own code and dependencies are not ours to keep free of warnings.
pytestmark = pytest.mark.filterwarnings("ignore")

ASK: Any = [{"role": "user", "content": "one two three four"}]
WEATHER_ASK: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
VERDICT: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "colour": {"enum": ["blue", "green"]}, "certainty": {"type": "integer", "minimum": 1, "maximum": 5},
            },
            "required": ["colour", "certainty"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip


@pytest.fixture
async def client() -> AsyncIterator[Any]:
    litellm: Any = importlib.import_module("litellm")
    yield litellm
    # It keeps connections for the next call, which here has another loop.
    await litellm.close_litellm_async_clients()
    litellm.in_memory_llm_clients_cache.flush_cache()


@pytest.fixture(scope="module")
def toy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xml")
    shutil.copytree(write_toy_checkpoint(tmp_path_factory.mktemp("toy")), folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(templates.CHATML_XML)
    return folder


@asynccontextmanager
async def echo(path: Path, **settings: Any) -> AsyncIterator[Live]:
    script = {"match": [["tool_response", "It will rain for 3 days."], ["Oslo", CALL]]}
    options = {"script": script, "delay_s": 0.005}
    args = EngineArgs(model=str(path), backend="echo", placement="thread", max_model_len=4096, backend_options=options)
    async with live(AsyncLLM(args), **settings) as server:
        yield server


def to(server: Live, *, api_key: str = "none", model: str = "tiny") -> dict[str, Any]:
    """How litellm is pointed at a server."""
    return {"model": f"openai/{model}", "api_base": f"{server.url}/v1", "api_key": api_key, "num_retries": 0}


async def test_litellm_reads_a_chat_answer_and_its_stream(toy_path: Path, client: Any) -> None:
    async with echo(toy_path) as server:
        answer = await client.acompletion(**to(server), messages=ASK, temperature=0)
        assert answer.choices[0].message.content == ASK[0]["content"]
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 4

        short = await client.acompletion(**to(server), messages=ASK, max_tokens=2)
        assert short.choices[0].finish_reason == "length"
        assert short.usage.completion_tokens == 2

        stream = await client.acompletion(
            **to(server), messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ASK[0]["content"]
        assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
        whole = client.stream_chunk_builder(chunks, messages=ASK)
        assert whole.usage.completion_tokens == answer.usage.completion_tokens
        assert whole.usage.prompt_tokens == answer.usage.prompt_tokens

        text = await client.atext_completion(
            **{**to(server), "model": "text-completion-openai/tiny"}, prompt="a b c", max_tokens=8
        )
        assert text.choices[0].text.startswith("a b c")


async def test_litellm_calls_a_tool_and_brings_its_result(toy_path: Path, client: Any) -> None:
    async with echo(toy_path) as server:
        messages = list(WEATHER_ASK)
        answer = await client.acompletion(**to(server), messages=messages, tools=[WEATHER])
        assert answer.choices[0].finish_reason == "tool_calls"
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) == {"city": "Oslo", "days": 3}
        messages += [
            answer.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        ]  # fmt: skip
        final = await client.acompletion(**to(server), messages=messages, tools=[WEATHER])
        assert final.choices[0].message.content == "It will rain for 3 days."
        assert final.choices[0].finish_reason == "stop"

        stream = await client.acompletion(**to(server), messages=WEATHER_ASK, tools=[WEATHER], stream=True)
        whole = client.stream_chunk_builder([chunk async for chunk in stream], messages=WEATHER_ASK)
        (streamed,) = whole.choices[0].message.tool_calls
        assert streamed.function.name == "weather"
        assert json.loads(streamed.function.arguments) == {"city": "Oslo", "days": 3}
        assert whole.choices[0].finish_reason == "tool_calls"


async def test_litellm_reads_a_structured_answer(smollm2_path: Path, client: Any) -> None:
    args = EngineArgs(model=str(smollm2_path), backend="torch", max_batch_size=2, max_model_len=512)
    async with live(AsyncLLM(args), served_model_name="smollm2") as server:
        ask = [{"role": "user", "content": "Is the sky blue or green? Give a colour and a number from 1 to 5."}]
        answer = await client.acompletion(
            **to(server, model="smollm2"), messages=ask, response_format=VERDICT, max_tokens=64
        )
    verdict = json.loads(answer.choices[0].message.content)
    assert set(verdict) == {"colour", "certainty"}
    assert verdict["colour"] in ("blue", "green")
    assert verdict["certainty"] in range(1, 6)


async def test_a_stream_closed_early_frees_its_slot(toy_path: Path, client: Any) -> None:
    async with echo(toy_path) as server:
        long = [{"role": "user", "content": "word " * 500}]
        stream = await client.acompletion(**to(server), messages=long, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await until(lambda: server.app.service.models.default.client.stats().num_running == 1, 10)
        await stream.aclose()
        await until(lambda: server.app.service.models.default.client.stats().num_running == 0, 10)
        assert server.app.service.models.num_active == 0


async def test_errors_become_those_of_litellm(toy_path: Path, client: Any) -> None:
    async with echo(toy_path, api_keys=("secret",)) as server:
        with pytest.raises(client.BadRequestError, match="web_search_options"):
            await client.acompletion(
                **to(server, api_key="secret"), messages=ASK, extra_body={"web_search_options": {"a": 1}}
            )
        with pytest.raises(client.BadRequestError, match="temperature"):
            await client.acompletion(**to(server, api_key="secret"), messages=ASK, extra_body={"temperature": "hot"})
        with pytest.raises(client.ContextWindowExceededError):
            await client.acompletion(
                **to(server, api_key="secret"), messages=[{"role": "user", "content": "word " * 9000}]
            )
        with pytest.raises(client.AuthenticationError) as caught:
            await client.acompletion(**to(server, api_key="wrong"), messages=ASK)
        assert caught.value.status_code == 401
        with pytest.raises(client.NotFoundError):
            await client.aembedding(model="openai/tiny", input=["x"], api_base=f"{server.url}/v1", api_key="secret")


async def test_litellm_sends_many_requests_at_once(toy_path: Path, client: Any) -> None:
    async with echo(toy_path) as server:

        async def ask(number: int) -> str:
            messages = [{"role": "user", "content": f"number {number}"}]
            answer = await client.acompletion(**to(server), messages=messages)
            return str(answer.choices[0].message.content)

        assert await asyncio.gather(*map(ask, range(8))) == [f"number {number}" for number in range(8)]
