"""tool_choice, strict tools and reasoning with a schema, through the whole pipeline on random weights.

A model that has learnt nothing obeys only what is enforced.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from pocketllm.errors import ConfigurationError
from pocketllm.llm import LLM
from pocketllm.protocol import chat_call
from pocketllm.sampling_params import SamplingParams
from pocketllm.testing.toy_checkpoint import write_toy_checkpoint
from pocketllm.text.reasoning import ReasoningMode
from tests.text import templates

ASK = [{"role": "user", "content": "go"}]
SAMPLED = SamplingParams(max_tokens=400, temperature=1.0, seed=11)


def _tool(name: str, strict: bool = True) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"unit": {"enum": ["c", "f"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["unit", "days"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}}


TOOLS = [_tool("weather"), _tool("tide")]


@pytest.fixture(scope="module", params=["CHATML_XML", "CHATML_JSON"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("forced")
    shutil.copytree(write_toy_checkpoint(tmp_path_factory.mktemp("toy")), folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(getattr(templates, request.param))
    with LLM(
        model=str(folder), backend="torch", dtype="float32", max_model_len=2048, backend_options={"num_threads": 1}
    ) as llm:
        yield llm


def _check(call: dict[str, Any]) -> None:
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["unit"] in ("c", "f")
    assert 1 <= arguments["days"] <= 9
    assert set(arguments) == {"unit", "days"}


def test_required_calls_a_tool_and_streams_it_at_once(llm: LLM) -> None:
    (result,) = llm.chat(ASK, SAMPLED, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    (call,) = result.choices[0].tool_calls
    assert result.finish_reason == "tool_calls"
    assert result.text == ""
    _check(call)
    events = list(llm.chat_stream(ASK, SAMPLED, tools=TOOLS, tool_choice="required", parallel_tool_calls=False))
    deltas = [delta for event in events for delta in event.metadata.get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == call["function"]["name"]
    assert "".join(delta["function"]["arguments"] for delta in deltas) == call["function"]["arguments"]


@pytest.mark.parametrize("name", ["weather", "tide"])
def test_a_named_tool_is_the_one_that_is_called(llm: LLM, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    (result,) = llm.chat(ASK, SAMPLED, tools=TOOLS, tool_choice=choice)
    (call,) = result.choices[0].tool_calls
    assert call["function"]["name"] == name
    _check(call)


def test_a_name_that_is_no_tool_is_refused(llm: LLM) -> None:
    choice = {"type": "function", "function": {"name": "moon"}}
    with pytest.raises(ConfigurationError, match="moon"):
        llm.chat(ASK, SAMPLED, tools=TOOLS, tool_choice=choice)


def test_a_schema_binds_the_answer_and_leaves_reasoning_free(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    (plain,) = llm.chat(ASK, SAMPLED, response_format=wanted)
    assert isinstance(json.loads(plain.text)["ok"], bool)
    for effort, after in (("low", "</think>"), ("none", "")):
        request = chat_call(ASK, SAMPLED, llm.capabilities, response_format=wanted, reasoning_effort=effort)
        prepared = llm.host.prepare(request)
        constraint = prepared.request.constraint
        assert constraint is not None
        if prepared.reasoning_mode is ReasoningMode.NONE:
            after = ""
        assert constraint.after == after
        assert bool(constraint.opening) == (prepared.reasoning_mode is ReasoningMode.AUTO)
