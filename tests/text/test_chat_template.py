"""Rendering agrees with transformers' own environment; faults get the right error; callers' data stays as it was."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pocketllm.errors import CheckpointError, ConfigurationError, UnsupportedFeatureError
from pocketllm.text.chat_template import ChatTemplate
from tests.text import templates

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather <now> & 'soon' in a city — été",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "What is 2+2?"}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": " hi <b> \n"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ],
    "reasoning": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "\nwhy\n"},
    ],
    "tools": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        {"role": "tool", "content": "warm", "tool_call_id": "c2"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": "thanks"},
    ],
    "odd roles": [{"role": "skip", "content": "no"}, {"role": "user", "content": "x"}, {"role": "end", "content": "y"}],
}
NOW = datetime(2025, 3, 4)


def oracle(source: str, **variables: Any) -> str:
    """transformers' rendering, or the message of the exception the template raised."""
    from jinja2.exceptions import TemplateError
    from transformers.utils import chat_template_utils

    template = chat_template_utils._compile_jinja_template(source)
    template.globals["strftime_now"] = NOW.strftime
    try:
        return str(template.render(**variables))
    except TemplateError as error:
        return f"raised: {error}"


def ours(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>", now=lambda: NOW)
    try:
        return template.render(messages, **options)
    except ConfigurationError as error:
        return f"raised: {error}" if error.param == "messages" else f"raised with param {error.param!r}: {error}"


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", ["CHATML_JSON", "CHATML_XML", "HEADERS", "TURNS", "ODDS_AND_ENDS"])
def test_templates_render_as_transformers_renders_them(name: str, conversation: str) -> None:
    source, messages = getattr(templates, name), CONVERSATIONS[conversation]
    num_raised = 0
    for options in (
        {},
        {"tools": TOOLS},
        {"add_generation_prompt": False},
        {"enable_thinking": False, "preserve_thinking": False, "date_string": "today"},
    ):
        variables = {"tools": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", **options}
        expected = oracle(source, messages=messages, **variables)
        assert ours(source, messages, **options) == expected
        num_raised += expected.startswith("raised")
    assert num_raised in (0, 4)


def test_smollm2s_template_renders_as_transformers_renders_it(smollm2_path: Path) -> None:
    from pocketllm.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(smollm2_path)
    source = checkpoint.chat_template()
    assert source is not None
    for messages in CONVERSATIONS.values():
        variables = {"tools": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
        assert ours(source, messages) == oracle(source, messages=messages, **variables)
    text = ours(source, CONVERSATIONS["one"])
    ids = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2]
    ids += [198, 1, 4093, 198, 1780, 314, 216, 34, 27, 34, 47, 2, 198, 1, 520, 9531, 198]
    assert checkpoint.tokenizer().encode(text, add_bos=False) == ids


def test_arguments_in_a_string_render_as_the_mapping_they_hold() -> None:
    as_text = copy.deepcopy(CONVERSATIONS["tools"])
    as_text[1]["tool_calls"][0]["function"]["arguments"] = '{"city": "Köln", "days": 2}'
    as_text[1]["content"] = None
    before = copy.deepcopy(as_text)
    rendered = ours(templates.CHATML_XML, as_text, tools=TOOLS)
    assert rendered == ours(templates.CHATML_XML, CONVERSATIONS["tools"], tools=TOOLS)
    assert "<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n</parameter>" in rendered
    assert as_text == before


def test_templates_cannot_change_what_they_are_given() -> None:
    messages = [{"role": "user", "content": "x", "extra": {"list": [1]}}]
    for attempt in ("messages.append(1)", "messages[0].update(a=1)", "messages[0].extra.list.pop()", "tools.clear()"):
        source = "{{ " + attempt + " }}"
        with pytest.raises(ConfigurationError):
            ChatTemplate(source).render(messages, tools=TOOLS)
    assert messages == [{"role": "user", "content": "x", "extra": {"list": [1]}}]


def test_exception_of_a_template_carries_its_own_message() -> None:
    with pytest.raises(ConfigurationError, match=r"^Conversation roles must alternate") as caught:
        ChatTemplate(templates.TURNS).render([{"role": "assistant", "content": "x"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source", ["{{ messages[0].a.b }}", "{{ 1 / 0 }}", "{{ none + 1 }}", "{% include 'x' %}", "{{ missing() }}"]
)
def test_failures_on_messages_are_the_messages_fault(source: str) -> None:
    with pytest.raises(ConfigurationError, match="chat template failed on these messages") as caught:
        ChatTemplate(source).render([{"role": "user", "content": "x"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source, words",
    [
        ("{% if %}", "at line 1: TemplateSyntaxError"),
        ("\n{{ x | nofilter }}", "at line 2: TemplateAssertionError"),
        ("{{" + "(" * 5000, "RecursionError"),
        ("{% endfor %}", "TemplateSyntaxError"),
        ("x" * 300_000, "300000 characters; the limit is"),
    ],
)
def test_templates_that_do_not_compile_are_refused(source: str, words: str) -> None:
    template = ChatTemplate(source)
    with pytest.raises(CheckpointError, match=words):
        template.check()
    with pytest.raises(CheckpointError, match=words):
        template.render([])


def test_absent_tokens_render_as_nothing() -> None:
    assert ChatTemplate("[{{ bos_token }}|{{ eos_token }}]").render([]) == "[|]"


def test_a_template_may_ask_for_the_time() -> None:
    assert ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", now=lambda: NOW).render([]) == "2025-03-04"
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]).isdigit()


def test_further_variables_are_plain_data_and_keep_to_their_names() -> None:
    template = ChatTemplate("{{ custom.a[0] }}")
    assert template.render([], custom={"a": (5,)}) == "5"
    with pytest.raises(ConfigurationError, match="raise_exception cannot be given"):
        template.render([], raise_exception=1)
    with pytest.raises(ConfigurationError, match="messages cannot be given"):
        template.render([], messages=1)
    assert ChatTemplate("{{ self }}").render([], self=1)
    with pytest.raises(ConfigurationError, match="custom holds a value of type object") as caught:
        template.render([], custom={"a": [object()]})
    assert caught.value.param == "custom"


def test_developer_is_system_where_the_template_does_not_know_it() -> None:
    messages = [{"role": "developer", "content": "d"}]
    assert ChatTemplate("{{ messages[0].role }}").render(messages) == "system"
    assert ChatTemplate("{# developer #}{{ messages[0].role }}").render(messages) == "developer"


def test_parts_that_are_not_text_are_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="image_url"):
        ChatTemplate("x").render([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


def test_one_template_renders_in_many_threads() -> None:
    template = ChatTemplate(templates.CHATML_JSON)
    expected = [template.render([{"role": "user", "content": str(n)}]) for n in range(8)]
    found: list[list[str]] = [[] for _ in range(8)]

    def work(n: int) -> None:
        found[n] = [template.render([{"role": "user", "content": str(n)}]) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[text] * 20 for text in expected]


def test_import_loads_no_heavy_library() -> None:
    code = "import pocketllm.text, sys; print({'jinja2', 'tokenizers', 'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize(
    "source, shown",
    [
        ("{{ messages[0].content }}", False),
        ("no tools here {{ 'tools' }} {{ messages[0].tools }} {# tools #}", False),
        ("{% if tools %}x{% endif %}", True),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{% if tools is not none %}x{% endif %}", True),
        ("{% macro m() %}{{ tools | tojson }}{% endmacro %}{{ m() }}", True),
        ("{% for tool in tools %}{{ tool.function.name }}{% endfor %}", True),
    ],
)
def test_a_template_tells_whether_it_shows_tools(source: str, shown: bool) -> None:
    assert ChatTemplate(source).shows_tools is shown
