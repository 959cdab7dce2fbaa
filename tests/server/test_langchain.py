"""The tool-calling round trip of the API guide, and structured output, through langchain-openai."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pocketllm.async_llm import AsyncLLM
from pocketllm.engine_args import EngineArgs
from pocketllm.testing.toy_checkpoint import write_toy_checkpoint
from tests.server.live import live
from tests.text import templates

# The client's own dependencies are not ours to keep free of warnings.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")

CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Forecast for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


@pytest.fixture(scope="module")
def xml_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xml")
    shutil.copytree(write_toy_checkpoint(tmp_path_factory.mktemp("toy")), folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(templates.CHATML_XML)
    return folder


def _model(path: Path) -> AsyncLLM:
    script = {"match": [["tool_response", "It will rain for 3 days."], ["Oslo", CALL]]}
    args = EngineArgs(
        model=str(path), backend="echo", placement="thread", max_model_len=4096, backend_options={"script": script}
    )
    return AsyncLLM(args)


async def test_langchain_calls_a_tool_and_reads_its_result(xml_path: Path) -> None:
    from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    async with live(_model(xml_path)) as server:
        client = ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model="tiny", max_retries=0)
        bound = client.bind_tools([WEATHER])
        messages: list[BaseMessage] = [HumanMessage("What is the weather in Oslo?")]
        answer = await bound.ainvoke(messages)
        assert isinstance(answer, AIMessage)
        (call,) = answer.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Oslo", "days": 3})
        assert answer.response_metadata["finish_reason"] == "tool_calls"
        messages += [answer, ToolMessage("rain", tool_call_id=str(call["id"]))]
        final = await bound.ainvoke(messages)
        assert final.content == "It will rain for 3 days."
        assert final.response_metadata["finish_reason"] == "stop"

        pieces = [piece async for piece in bound.astream([HumanMessage("What is the weather in Oslo?")])]
        streamed = pieces[0]
        for piece in pieces[1:]:
            streamed = streamed + piece
        assert streamed.tool_calls[0]["args"] == {"city": "Oslo", "days": 3}
        await client.root_async_client.close()
