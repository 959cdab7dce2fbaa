"""Structured output of a real model through the clients' own helpers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest

from pocketllm.async_llm import AsyncLLM
from pocketllm.engine_args import EngineArgs
from tests.server.live import Live, live

# The clients' own dependencies are not ours to keep free of warnings.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::PendingDeprecationWarning", "ignore:Pydantic serializer warnings:UserWarning"
)

ASK: Any = [{"role": "user", "content": "Is the sky blue or green? Give a colour and a number from 1 to 5."}]


class Verdict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    colour: Literal["blue", "green"]
    certainty: int = pydantic.Field(ge=1, le=5)


@pytest.fixture
async def server(smollm2_path: Path) -> AsyncIterator[Live]:
    args = EngineArgs(model=str(smollm2_path), backend="torch", max_batch_size=4, max_model_len=1024)
    async with live(AsyncLLM(args), served_model_name="smollm2") as server:
        yield server


async def test_the_openai_client_parses_structured_answers(server: Live) -> None:
    url = server.url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        parsed = await client.chat.completions.parse(
            model="smollm2", messages=ASK, response_format=Verdict, max_tokens=64
        )
        assert isinstance(parsed.choices[0].message.parsed, Verdict)

        answer = await client.chat.completions.create(
            model="smollm2", messages=ASK, max_tokens=16, temperature=1.0, seed=1, n=2,
            extra_body={"structured_outputs": {"choice": ["yes, blue", "no"]}},
        )  # fmt: skip
        assert {choice.message.content for choice in answer.choices} <= {"yes, blue", "no"}

        stream = await client.completions.create(
            model="smollm2", prompt="A date:", max_tokens=16, stream=True,
            extra_body={"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}"}},
        )  # fmt: skip
        text = "".join([chunk.choices[0].text async for chunk in stream])
        assert len(text) == 7
        assert text[4] == "-"

        schema = {"type": "object", "properties": {"a": {"not": {}}}}
        with pytest.raises(openai.BadRequestError, match="/properties/a/not"):
            await client.chat.completions.create(
                model="smollm2", messages=ASK,
                response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
            )  # fmt: skip

    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=url, api_key="none", model="smollm2", max_retries=0, max_tokens=64)
    structured = chat.with_structured_output(Verdict, method="json_schema")
    assert isinstance(await structured.ainvoke(ASK[0]["content"]), Verdict)
    await chat.root_async_client.close()
    assert json.loads(parsed.choices[0].message.content or "")
