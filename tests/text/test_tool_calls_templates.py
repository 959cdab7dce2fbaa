"""Chat templates that real checkpoints ship: each gets its syntax, and a conversation with tools renders and parses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pocketllm.errors import ConfigurationError
from pocketllm.text.chat_formats.deepseek_v4 import BOS, EOS, encode
from pocketllm.text.chat_template import ChatTemplate
from pocketllm.text.tool_calls import HermesJson, recognise
from tests.text import templates
from tests.text.tool_call_corpus import SYNTAXES

SOURCE = "llama-cpp-python==0.3.36"
_NO_NETWORK = (
    "Connection",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "timed out",
    "getaddrinfo",
)

RECOGNISED = {
    "Bielik-11B-v3.0-Instruct": "hermes_json",
    "MiMo-VL": "hermes_json",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen_xml",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes_json",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes_json",
    "Qwen-QwQ-32B": "hermes_json",
    "Qwen-Qwen2.5-7B-Instruct": "hermes_json",
    "Qwen-Qwen3-0.6B": "hermes_json",
    "Qwen3-Coder": "qwen_xml",
    "Qwen3.5-4B": "qwen_xml",
    "Reka-Edge": "hermes_json",
    "StepFun3.5-Flash": "qwen_xml",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_dsml",
    "deepseek-ai-DeepSeek-V4": "deepseek_dsml",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek_dsml",
    "ibm-granite-granite-4.0": "hermes_json",
    "ibm-granite-granite-4.1": "hermes_json",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3_json",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3_json",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "its name"},
                "days": {"type": "integer", "description": "how many"},
                "options": {"type": "object", "description": "more"},
            },
            "required": ["city"],
        },
    },
}
ARGUMENTS = {"city": "Köln </b>\n  & <more>", "days": 2, "options": {"units": ["C", None, True]}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_abcd",
                "type": "function",
                "function": {"name": "get_weather", "arguments": json.dumps(ARGUMENTS)},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_abcd", "content": "sunny"},
    {"role": "assistant", "content": "Sunny."},
    {"role": "user", "content": "Thanks."},
]


@pytest.fixture(scope="session")
def template_folder(repository: Path) -> Path:
    """`*.jinja` from the source distribution that carries them, kept between runs. Skips only without a network."""
    cache = Path(os.environ.get("POCKETLLM_TEST_CACHE") or repository / ".cache")
    folder = cache / ("templates-" + SOURCE.replace("==", "-"))
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            unpacked = Path(scratch) / "unpacked"
            unpacked.mkdir()
            with tarfile.open(_download(Path(scratch))) as tar:
                for member in tar:
                    if "/llama.cpp/models/templates/" in member.name and member.name.endswith(".jinja"):
                        contents = tar.extractfile(member)
                        assert contents is not None
                        (unpacked / Path(member.name).name).write_bytes(contents.read())
            unpacked.rename(folder)
    return folder


def _download(folder: Path) -> Path:
    name = SOURCE.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", name, SOURCE, "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        complaint = done.stdout + done.stderr
        if any(word in complaint for word in _NO_NETWORK):
            pytest.skip(f"no network to fetch {SOURCE} with, and nothing cached")
        pytest.fail(f"pip download {SOURCE} failed:\n{complaint[-2000:]}")
    return next(folder.glob("*.tar.gz"))


def source_of(folder: Path, name: str) -> str:
    return (folder / f"{name}.jinja").read_text(encoding="utf-8")


def chat_template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token=BOS, eos_token=EOS, now=lambda: datetime(2025, 3, 4))


def test_every_template_gets_its_syntax_or_none(template_folder: Path) -> None:
    found = {}
    for file in template_folder.glob("*.jinja"):
        syntax = recognise(file.read_text(encoding="utf-8"), "any")
        if syntax is not None:
            found[file.stem] = syntax.name
    assert found == RECOGNISED
    assert len(list(template_folder.glob("*.jinja"))) > 60


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_conversation_with_tools_renders(template_folder: Path, name: str) -> None:
    template = chat_template(source_of(template_folder, name))
    prompt = template.render(CONVERSATION, tools=[TOOL])
    assert "get_weather" in prompt
    assert "how many" in prompt  # the tool's schema
    assert "Thanks." in prompt
    assert "sunny" in prompt


# Where the first thing of the answer stands in what the template writes for it, and what ends it.
_STARTS = {
    "qwen_xml": "<tool_call>",
    "hermes_json": "<tool_call>",
    "llama3_json": '{"name"',
    "deepseek_dsml": "<｜DSML｜",
}
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<sep>", EOS)


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_call_as_the_template_writes_it_is_read_back(template_folder: Path, name: str) -> None:
    template = chat_template(source_of(template_folder, name))
    before = template.render(CONVERSATION[:1], tools=[TOOL], add_generation_prompt=False)
    with_call = template.render(CONVERSATION[:2], tools=[TOOL], add_generation_prompt=False)
    assert with_call.startswith(before)
    written = with_call.removeprefix(before)
    written = written[written.index(_STARTS[RECOGNISED[name]]) :]
    completion = written[: min((written.index(end) for end in _ENDS if end in written), default=len(written))]
    parsed = SYNTAXES[RECOGNISED[name]].parse(completion, [TOOL])
    assert parsed is not None, completion
    (call,) = parsed.calls
    assert call.name == "get_weather"
    assert json.loads(call.arguments) == ARGUMENTS


@pytest.mark.parametrize("name", ["deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"])
@pytest.mark.parametrize("thinking_mode", ["thinking", "chat"])
@pytest.mark.parametrize("drop_thinking", [True, False])
@pytest.mark.parametrize("effort", [None, "low", "high", "max"])
def test_the_encoder_agrees_with_the_template_of_the_later_release(
    template_folder: Path, name: str, thinking_mode: str, drop_thinking: bool, effort: str | None
) -> None:
    """Where both are defined: the template has no developer turns, tasks or sorting."""
    template = chat_template(source_of(template_folder, name))
    conversations = [
        CONVERSATION[:1],
        [{"role": "system", "content": "Be brief."}, *CONVERSATION[4:]],
        [
            *CONVERSATION[:1],
            {"role": "assistant", "content": "b", "reasoning_content": "why"},
            {"role": "user", "content": "c"},
            {"role": "user", "content": "d"},
        ],
        [{"role": "system", "content": "Be brief."}, *CONVERSATION],
    ]
    for number, messages in enumerate(conversations):
        tools = [TOOL] if number % 2 else None
        variables: dict[str, Any] = {"thinking": thinking_mode == "thinking", "drop_thinking": drop_thinking}
        if effort is not None:
            variables["reasoning_effort"] = effort
        ours = encode(
            messages,
            tools=tools,
            thinking_mode=thinking_mode,
            drop_thinking=drop_thinking,
            reasoning_effort=effort,
            effort_revision="0731" if name.endswith("0731") else "original",
        )
        assert ours == template.render(messages, tools=tools, **variables)


def test_the_tests_own_templates_are_recognised() -> None:
    found = {
        name: recognise(getattr(templates, name), "any") for name in ("CHATML_JSON", "CHATML_XML", "HEADERS", "TURNS")
    }
    assert {name: syntax and syntax.name for name, syntax in found.items()} == {
        "CHATML_JSON": "hermes_json",
        "CHATML_XML": "qwen_xml",
        "HEADERS": "llama3_json",
        "TURNS": None,
    }


def test_deepseek_v4_needs_no_template() -> None:
    syntax = recognise(None, "deepseek_v4")
    assert syntax is not None
    assert syntax.name == "deepseek_dsml"
    assert recognise(None, "qwen3_5") is None


def test_plugins_are_asked_first() -> None:
    class Mine(HermesJson):
        name = "mine"

    syntax = recognise(templates.CHATML_JSON, "any", [Mine()])
    assert syntax is not None
    assert syntax.name == "mine"


def test_templates_that_take_one_call_only_say_so(template_folder: Path) -> None:
    template = chat_template(source_of(template_folder, "meta-llama-Llama-3.1-8B-Instruct"))
    messages = [CONVERSATION[0], CONVERSATION[1] | {"tool_calls": CONVERSATION[1]["tool_calls"] * 2}]
    with pytest.raises(ConfigurationError, match="single tool-calls"):
        template.render(messages, tools=[TOOL])
