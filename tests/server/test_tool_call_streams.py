"""Parsed tool calls over a socket: a stream adds up to the plain answer, in every syntax and however it is cut."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pocketllm.async_llm import AsyncLLM
from pocketllm.engine_args import EngineArgs
from pocketllm.testing.toy_checkpoint import write_toy_checkpoint
from pocketllm.text.tool_calls import recognise
from tests.server.http_app import CHAT, events_of
from tests.server.live import live
from tests.text.tool_call_corpus import CORPUS, TOOLS, Completion

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
EXAMPLES = {
    "qwen_xml": "<tool_call>\n<function=f>\n<parameter=k>\nv\n</parameter>\n</function>\n</tool_call>",
    "hermes_json": '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    "llama3_json": '<|python_tag|>{"name": "f", "parameters": {}}',
    "deepseek_dsml": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
}
# Seconds a step takes, and whose tokens: pieces of one or two bytes that leave one by one or merged, whole words.
CUTS = {"single bytes": (0.002, "toy"), "merged bytes": (0.0, "toy"), "words": (0.002, "smollm2")}
NUM_EACH = 5


def sample(syntax: str) -> list[Completion]:
    """Completions with calls, broken ones, and prose, spread over the corpus."""
    with_calls = [each for each in CORPUS[syntax] if each.calls]
    without = [each for each in CORPUS[syntax] if not each.calls and each.text]
    several = [each for each in with_calls if each.calls and len(each.calls) > 1]
    return [
        *with_calls[:: len(with_calls) // NUM_EACH], *several[:: len(several) // 2 or 1][:2],
        *without[:: len(without) // NUM_EACH],
    ]  # fmt: skip


class Scripted:
    def __init__(self, client: httpx.AsyncClient, completions: list[Completion]) -> None:
        self._client = client
        self.completions = completions

    async def ask(self, number: int, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": f"case {number};"}]
        body = {"messages": messages, "tools": TOOLS, "n": 2, "stop": ["HALT"], **fields}
        response = await self._client.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        return response

    async def plain(self, number: int) -> dict[str, Any]:
        body: dict[str, Any] = (await self.ask(number)).json()
        return body

    async def streamed(self, number: int, **fields: Any) -> list[dict[str, Any]]:
        options = {"include_usage": True}
        return events_of((await self.ask(number, stream=True, stream_options=options, **fields)).text)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[(syntax, cut) for syntax in EXAMPLES for cut in CUTS], ids=" in ".join
)
async def model(
    request: pytest.FixtureRequest, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scripted]:
    syntax, cut = request.param
    delay_s, tokenizer = CUTS[cut]
    folder = tmp_path_factory.mktemp(syntax)
    if tokenizer == "toy":
        shutil.copytree(write_toy_checkpoint(tmp_path_factory.mktemp("toy")), folder, dirs_exist_ok=True)
    else:
        (folder / smollm2_path.name).symlink_to(smollm2_path)
    template = f"{{% if tools %}}{{{{ {EXAMPLES[syntax]!r} }}}}\n{{% endif %}}{MESSAGES}"
    found = recognise(template, "llama")
    assert found is not None
    assert found.name == syntax
    (folder / "chat_template.jinja").write_text(template)
    completions = sample(syntax)
    script = {"match": [[f"case {number};", each.text + "HALT!"] for number, each in enumerate(completions)]}
    args = EngineArgs(
        model=str(folder), backend="echo", placement="thread", max_model_len=4096,
        backend_options={"script": script, "delay_s": delay_s},
    )  # fmt: skip
    async with live(AsyncLLM(args)) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            yield Scripted(client, completions)


def message_of(choice: dict[str, Any]) -> dict[str, Any]:
    """What a plain choice says; the ids of its calls are fresh each time."""
    message = choice["message"]
    calls = message.get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["id"].startswith("call_") and call["type"] == "function" for call in calls)
    return {
        "content": message["content"] or "",
        "calls": [call["function"] for call in calls],
        "finish": choice["finish_reason"],
    }


def added_up(chunks: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """What the deltas of one choice add up to; checks how they follow each other."""
    mine = [each for chunk in chunks for each in chunk["choices"] if each["index"] == index]
    content, ids = "", []
    calls: list[dict[str, str]] = []
    for each in mine:
        content += each["delta"].get("content") or ""
        for delta in each["delta"].get("tool_calls", ()):
            if delta["index"] == len(calls):
                assert delta["type"] == "function"
                calls.append({"name": delta["function"]["name"], "arguments": ""})
                ids.append(delta["id"])
            else:
                assert delta["index"] == len(calls) - 1, "one call after the other"
                assert "id" not in delta
                assert "name" not in delta["function"]
            calls[-1]["arguments"] += delta["function"].get("arguments", "")
    assert len(set(ids)) == len(calls)
    reasons = [each["finish_reason"] for each in mine if each["finish_reason"]]
    assert mine[-1]["finish_reason"] == reasons[0]
    assert len(reasons) == 1
    return {"content": content, "calls": calls, "finish": reasons[0]}


async def test_a_stream_adds_up_to_the_plain_answer(model: Scripted) -> None:
    numbers = range(len(model.completions))
    answers = await asyncio.gather(*map(model.plain, numbers))
    streams = await asyncio.gather(*map(model.streamed, numbers))
    for completion, answer, chunks in zip(model.completions, answers, streams, strict=True):
        for index in range(2):
            plain = message_of(answer["choices"][index])
            assert added_up(chunks, index) == plain, completion.text
            told = [(call["name"], json.loads(call["arguments"])) for call in plain["calls"]]
            assert told == (completion.calls or []), completion.text
            assert plain["content"] == (completion.content if completion.calls else completion.text)
            assert plain["finish"] == ("tool_calls" if completion.calls else "stop")
        assert chunks[-1]["usage"] == answer["usage"]


async def test_calls_that_leave_as_they_are_written_add_up_too(model: Scripted) -> None:
    numbers = [number for number, completion in enumerate(model.completions) if completion.calls]
    answers = await asyncio.gather(*map(model.plain, numbers))
    streams = await asyncio.gather(*(model.streamed(number, tool_call_streaming="eager") for number in numbers))
    for answer, chunks in zip(answers, streams, strict=True):
        assert added_up(chunks, 0) == message_of(answer["choices"][0])
