"""A request's own deadline reaches all of its choices."""

from __future__ import annotations

from pathlib import Path

import httpx

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from tests.server.http_app import COMPLETIONS, events_of
from tests.server.live import live


async def test_a_deadline_hands_over_what_arrived(smollm2_path: Path) -> None:
    options = {"delay_s": 0.02, "script": {"match": [["quick", "one"], ["slow", "word " * 400]]}}
    args = EngineArgs(model=str(smollm2_path), backend="echo", backend_options=options, placement="thread")
    async with live(AsyncLLM(args)) as server, httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        body = {"prompt": ["slow", "quick"], "timeout": 0.5, "n": 2}
        some = await client.post(COMPLETIONS, json=body)
        assert some.status_code == 200, some.text
        assert [(choice["index"], choice["text"]) for choice in some.json()["choices"]] == [(2, "one"), (3, "one")]
        none = await client.post(COMPLETIONS, json={**body, "prompt": "slow"})
        assert none.status_code == 504
        assert none.json()["error"]["code"] == "deadline_exceeded"
        streamed = events_of((await client.post(COMPLETIONS, json={**body, "stream": True})).text)
        ends = {e["choices"][0]["index"]: e["choices"][0]["finish_reason"] for e in streamed}
        assert ends == {0: "cancelled", 1: "cancelled", 2: "stop", 3: "stop"}
        assert server.app.service.models.num_active == 0
