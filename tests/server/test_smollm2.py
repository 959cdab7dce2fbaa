"""A real model behind the whole stack, with the client that most people use."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from tests.server.http_app import until
from tests.server.live import live

pytest.importorskip("torch")
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


async def test_a_stream_of_smollm2_equals_its_answer_and_may_be_closed_early(smollm2_path: Path) -> None:
    args = EngineArgs(
        model=str(smollm2_path),
        backend="torch",
        backend_options={"deterministic": True, "num_threads": 2},
        max_batch_size=8,
        max_model_len=512,
    )
    async with live(AsyncLLM(args), served_model_name="smollm2") as server:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:

            async def text_of(prompt: str) -> str:
                stream = await client.completions.create(model="smollm2", prompt=prompt, max_tokens=8, stream=True)
                return "".join([chunk.choices[0].text async for chunk in stream])

            answer = await client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=16)
            assert "Paris" in (answer.choices[0].message.content or "")
            stream = await client.chat.completions.create(
                model="smollm2", messages=QUESTION, max_tokens=16, stream=True
            )
            streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert streamed == answer.choices[0].message.content

            prompts = [f"Number {number} is" for number in range(8)]
            alone = [await text_of(prompt) for prompt in prompts]
            assert await asyncio.gather(*(text_of(prompt) for prompt in prompts)) == alone

            stream = await client.chat.completions.create(
                model="smollm2", messages=QUESTION, max_tokens=400, stream=True
            )
            await anext(aiter(stream))
            await stream.close()
            await until(lambda: server.app.service.models.num_active == 0)
            await until(lambda: server.app.service.models.default.client.stats().num_running == 0, 10)
