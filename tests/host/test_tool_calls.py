"""Tool calls through the whole pipeline: a template's syntax in, OpenAI-shaped calls out, streamed or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pocketllm.engine.call import GenerateCall
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import ConfigurationError
from pocketllm.hookspecs import hookimpl
from pocketllm.llm import LLM
from pocketllm.plugins.registry import Registry
from pocketllm.protocol import chat_request
from pocketllm.sampling_params import SamplingParams
from pocketllm.text.tool_calls import recognise
from pocketllm.types import Constraint, SyntaxPart, TokenEvent
from tests.text import templates

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]
ASK = [{"role": "user", "content": "call it"}]
CALL = (
    "Let me look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n"
    "</parameter>\n</function>\n</tool_call>"
)
ARGUMENTS = {"city": "Oslo", "days": 3}


@pytest.fixture(scope="module")
def xml_path(toy_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xml")
    shutil.copytree(toy_path, folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(templates.CHATML_XML)
    return folder


@pytest.fixture
def ask(xml_path: Path) -> Iterator[Any]:
    """Open echo with a script; returns the LLM."""
    opened: list[LLM] = []

    def open_with(script: str, **fields: Any) -> LLM:
        args = EngineArgs(model=str(xml_path), backend="echo", max_model_len=2048, backend_options={"script": script})
        llm = LLM(args, **fields)
        opened.append(llm)
        return llm

    yield open_with
    for llm in opened:
        llm.close()


def _streamed(events: list[TokenEvent]) -> list[dict[str, Any]]:
    return [delta for event in events for delta in event.metadata.get("tool_calls", [])]


def test_a_call_is_read_and_typed_by_the_schema(ask: Any) -> None:
    (result,) = ask(CALL).chat(ASK, tools=TOOLS)
    (call,) = result.choices[0].tool_calls
    assert result.text == "Let me look."
    assert result.finish_reason == "tool_calls"
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    assert "index" not in call


def test_without_tools_every_argument_is_a_string(ask: Any) -> None:
    (result,) = ask(CALL).chat(ASK)
    (call,) = result.choices[0].tool_calls
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo", "days": "3"}


def test_a_stream_gives_the_name_first_and_once(ask: Any) -> None:
    events = list(ask(CALL).chat_stream(ASK, tools=TOOLS))
    assert "".join(event.text for event in events) == "Let me look."
    deltas = _streamed(events)
    assert deltas[0]["function"] == {"name": "weather", "arguments": ""}
    assert deltas[0]["index"] == 0
    assert deltas[0]["id"].startswith("call_")
    assert all("name" not in delta["function"] and "id" not in delta for delta in deltas[1:])
    assert json.loads("".join(delta["function"]["arguments"] for delta in deltas)) == ARGUMENTS
    assert events[-1].finish_reason == "tool_calls"


def test_a_broken_call_stays_in_the_content_as_generated(ask: Any) -> None:
    broken = CALL.replace("</function>", "")
    (result,) = ask(broken).chat(ASK, tools=TOOLS)
    assert result.text == broken
    assert result.choices[0].tool_calls == ()
    assert result.finish_reason == "stop"
    events = list(ask(broken).chat_stream(ASK, tools=TOOLS))
    assert "".join(event.text for event in events) == broken
    assert _streamed(events) == []


def test_length_is_never_masked(ask: Any) -> None:
    llm = ask(CALL)
    num_tokens = len(llm.host.tokenizer.encode(CALL))
    (cut,) = llm.chat(ASK, SamplingParams(max_tokens=num_tokens - 1), tools=TOOLS)
    assert (cut.finish_reason, cut.choices[0].tool_calls) == ("length", ())
    assert cut.text.startswith("Let me look.\n\n<tool_call>")
    (whole,) = llm.chat(ASK, SamplingParams(max_tokens=num_tokens), tools=TOOLS)
    assert whole.finish_reason == "length"
    assert len(whole.choices[0].tool_calls) == 1


def test_calls_inside_reasoning_are_no_calls(ask: Any) -> None:
    (result,) = ask(CALL + "</think>The answer.").chat(ASK, tools=TOOLS, reasoning_effort="low")
    assert result.text == "The answer."
    assert "<tool_call>" in (result.reasoning_content or "")
    assert result.choices[0].tool_calls == ()


def test_plain_completions_keep_the_text(ask: Any) -> None:
    (result,) = ask(CALL).generate("call it")
    assert result.text == CALL
    assert result.choices[0].tool_calls == ()


def test_tool_choice_none_hides_the_tools_and_reads_no_call(ask: Any) -> None:
    llm = ask(CALL)
    (result,) = llm.chat(ASK, tools=TOOLS, tool_choice="none")
    assert result.text == CALL
    with_tools = llm.chat(ASK, tools=TOOLS)[0].usage.prompt_tokens
    assert result.usage.prompt_tokens < with_tools


class Bracketed:
    """A syntax a plugin might bring: the same calls, but only for templates that name it."""

    name = "bracketed"
    special_texts = ()

    def __init__(self) -> None:
        syntax = recognise(templates.CHATML_XML, "toy")
        assert syntax is not None
        self.parse, self.stream = syntax.parse, syntax.stream
        self.asked = 0

    def recognises(self, template_source: str | None, model_type: str) -> bool:
        self.asked += 1
        return True


BRACKETED = Bracketed()


class SyntaxPlugin:
    def __init__(self, target: str) -> None:
        self.target = target

    @hookimpl
    def pocketllm_syntaxes(self) -> list[SyntaxPart]:
        return [SyntaxPart(name="bracketed", target=self.target)]

    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> None:
        return None


def _registry(target: str) -> Registry:
    import pocketllm_echo

    return Registry.of_objects(backends={"echo": pocketllm_echo}, extensions={"syntaxes": SyntaxPlugin(target)})


def test_a_plugin_may_bring_a_syntax(ask: Any) -> None:
    llm = ask(CALL, registry=_registry("tests.host.test_tool_calls:BRACKETED"))
    assert llm.host.prompts.syntax.name == "bracketed"
    assert len(llm.chat(ASK, tools=TOOLS)[0].choices[0].tool_calls) == 1


class EnforcedBracketed(Bracketed):
    def call_constraint(
        self, tools: Sequence[Mapping[str, Any]], *, mode: str, name: str | None, parallel: bool
    ) -> Constraint:
        names = "|".join(tool["function"]["name"] for tool in tools)
        return Constraint(kind="regex", text=f"{mode} {name} {parallel} ({names})")


ENFORCED = EnforcedBracketed()


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("required", "required None True (weather)"),
        ({"type": "function", "function": {"name": "weather"}}, "named weather True (weather)"),
    ],
)
def test_a_plugins_syntax_may_bring_the_grammar_of_its_calls(ask: Any, choice: Any, text: str) -> None:
    llm = ask(CALL, registry=_registry("tests.host.test_tool_calls:ENFORCED"))
    request = chat_request({"messages": ASK, "tools": TOOLS, "tool_choice": choice})
    constraint = llm.host.prompts.prepare(request, llm.capabilities).request.constraint
    assert (constraint.kind, constraint.text) == ("regex", text)


def test_calls_of_a_syntax_without_a_grammar_cannot_be_forced(ask: Any) -> None:
    llm = ask(CALL, registry=_registry("tests.host.test_tool_calls:BRACKETED"))
    request = chat_request({"messages": ASK, "tools": TOOLS, "tool_choice": "required"})
    with pytest.raises(ConfigurationError, match="'bracketed' cannot be enforced"):
        llm.host.prompts.prepare(request, llm.capabilities)


@pytest.mark.parametrize("target", ["tests.host.no_such_module:X", "tests.host.test_tool_calls:TOOLS"])
def test_a_syntax_that_does_not_load_breaks_its_plugin_and_no_more(ask: Any, target: str) -> None:
    registry = _registry(target)
    llm = ask(CALL, registry=registry)
    assert llm.host.prompts.syntax.name != "bracketed"
    (plugin,) = [plugin for plugin in registry.plugins if plugin.name == "syntaxes"]
    assert plugin.state == "broken"
