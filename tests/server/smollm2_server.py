"""SmolLM2 behind a real socket, with a chat template that shows tools and one variable of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from tests.server.http_app import CHAT, COMPLETIONS
from tests.server.live import live
from tests.server.smollm2_forward import Forward

PROMPT = "The capital of France is"
ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]
# SmolLM2's own template, with tools and one variable of its own in front.
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\\n<tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    '{{ \'</tools> Call as <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call><|im_end|>\\n\' }}{% endif %}'
    "{% if persona %}{{ '<|im_start|>system\\nYou are ' + persona + '.<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class SmolLM2:
    """The served model, asked over HTTP."""

    def __init__(self, client: httpx.AsyncClient, forward: Forward) -> None:
        self.client = client
        self.forward = forward

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        response = await self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    async def complete(self, prompt: Any = PROMPT, **fields: Any) -> Any:
        return await self.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 8, **fields})

    async def text(self, prompt: Any = PROMPT, **fields: Any) -> str:
        answer = await self.complete(prompt, **fields)
        return str(answer["choices"][0]["text"])

    async def ids(self, prompt: Any = PROMPT, **fields: Any) -> list[int]:
        answer = await self.complete(prompt, return_token_ids=True, **fields)
        return list(answer["choices"][0]["token_ids"])

    async def chat(self, messages: Any = ASK, **fields: Any) -> Any:
        return await self.post(CHAT, {"messages": messages, "max_tokens": 16, **fields})

    async def rendered(self, messages: Any = ASK, **fields: Any) -> str:
        return str((await self.post("/apply-template", {"messages": messages, **fields}))["prompt"])

    async def tokenize(self, text: str) -> list[int]:
        return list((await self.post("/tokenize", {"content": text}))["tokens"])

    async def refusal(self, path: str, **body: Any) -> tuple[int, Any]:
        response = await self.client.post(path, json=body)
        return response.status_code, response.json()["error"]["param"]

    def greedy(self, ids: list[int], num: int, adjust: Callable[[torch.Tensor, list[int]], None]) -> list[int]:
        """The greedy continuation when ``adjust(logits, generated)`` changes the logits of every step."""
        generated: list[int] = []
        for _ in range(num):
            row = self.forward.logits([*ids, *generated])[-1].clone()
            adjust(row, generated)
            generated.append(int(row.argmax()))
        return generated


@asynccontextmanager
async def served(weights: Path, folder: Path) -> AsyncIterator[SmolLM2]:
    """Serve the weights from an empty folder, computing each sequence by itself, so that answers can be compared."""
    (folder / weights.name).symlink_to(weights)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    args = EngineArgs(
        model=str(folder), backend="torch", dtype="float32", max_batch_size=8, max_model_len=1024,
        backend_options={"deterministic": True, "num_threads": 1},
    )  # fmt: skip
    async with live(AsyncLLM(args), served_model_name="smollm2") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            yield SmolLM2(client, Forward(weights))
