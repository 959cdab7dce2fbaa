"""The DeepSeek-V4 prompt: written out for each rule, and back through the parser of its calls."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm.text.chat_formats import find_chat_format
from pocketllm.text.chat_formats.deepseek_v4 import EFFORT_TEXTS, encode
from pocketllm.text.tool_calls import DeepSeekDsml
from pocketllm.text.tool_calls.deepseek_dsml import render_calls
from tests.text.joined_calls import join_calls

B, E, U, A = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Wetter — <b>", "parameters": {}}}
TOOLS_BLOCK = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{"name": "get_weather", "description": "Wetter — <b>", "parameters": {}}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""  # noqa: E501  # the model was trained on these very lines


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def assistant(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "system", "content": text, **more}


def result(text: str, call_id: str = "") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def call(name: str, arguments: Any, call_id: str = "") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_deepseek_v4_renders_the_simplest_conversations() -> None:
    messages = [system("You are a helpful assistant."), user("What is 2+2?")]
    start = f"{B}You are a helpful assistant.{U}What is 2+2?{A}"
    assert encode(messages, thinking_mode="thinking") == f"{start}<think>"
    assert encode(messages, thinking_mode="chat") == f"{start}</think>"
    assert encode(messages, thinking_mode="thinking", reasoning_effort="none") == f"{start}</think>"
    assert encode(messages, add_generation_prompt=False) == f"{B}You are a helpful assistant.{U}What is 2+2?"
    assert encode([]) == B


def test_old_reasoning_is_dropped_and_new_reasoning_kept() -> None:
    messages = [
        user("a"),
        assistant("b", reasoning_content="why b"),
        user("c"),
        assistant("d", reasoning="why d"),
    ]
    dropped = f"{B}{U}a{A}</think>b{E}{U}c{A}<think>why d</think>d{E}"
    assert encode(messages, thinking_mode="thinking") == dropped
    kept = f"{B}{U}a{A}<think>why b</think>b{E}{U}c{A}<think>why d</think>d{E}"
    assert encode(messages, thinking_mode="thinking", drop_thinking=False) == kept
    assert encode(messages, thinking_mode="chat") == f"{B}{U}a{A}</think>b{E}{U}c{A}</think>d{E}"
    assert encode(messages, thinking_mode="thinking", tools=[TOOL]).endswith(kept.removeprefix(B))


def test_deepseek_v4_renders_a_tool_call_and_its_result() -> None:
    messages = [
        system("Be brief."),
        user("Weather?"),
        assistant(
            "I look.", reasoning_content="hm", tool_calls=[call("get_weather", '{"city": "Köln", "days": 2}', "c")]
        ),
        result("sunny", "c"),
    ]
    block = (
        "\n\n<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Köln</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        "</｜DSML｜tool_calls>"
    )
    assert encode(messages, tools=[TOOL], thinking_mode="thinking") == (
        f"{B}Be brief.\n\n{TOOLS_BLOCK}{U}Weather?{A}<think>hm</think>I look.{block}{E}"
        f"{U}<tool_result>sunny</tool_result>{A}<think>"
    )


def test_tools_and_formats_go_to_the_first_system_or_developer_message() -> None:
    schema = {"type": "object", "title": "ü"}
    wanted = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n" + json.dumps(
        schema, ensure_ascii=False
    )
    assert encode([user("a")], tools=[TOOL]) == f"{B}\n\n{TOOLS_BLOCK}{U}a{A}</think>"
    assert encode([user("a"), system("s")], tools=[TOOL]) == f"{B}{U}as\n\n{TOOLS_BLOCK}"
    assert encode([system("s"), user("a")], response_format=schema) == f"{B}s\n\n{wanted}{U}a{A}</think>"
    assert encode([system("s"), user("a")], response_format={"type": "text"}) == f"{B}s{U}a{A}</think>"
    developer = {"role": "developer", "content": "d"}
    assert (
        encode([developer], tools=[TOOL], response_format=schema) == f"{B}{U}d\n\n{TOOLS_BLOCK}\n\n{wanted}{A}</think>"
    )
    own = system("s", tools=[TOOL], response_format=schema)
    assert encode([own, user("a")]) == f"{B}s\n\n{TOOLS_BLOCK}\n\n{wanted}{U}a{A}</think>"


def test_results_and_texts_share_the_users_turn() -> None:
    messages = [
        user("a"),
        assistant(None, tool_calls=[call("f", {}, "1"), call("g", "{}", "2"), call("h", {}, "3")]),
        result("three", "3"),
        user("and"),
        result("one", "1"),
        result("two", "2"),
        user("so?"),
        user("well?"),
    ]
    prompt = encode(messages)
    turn = "\n\n".join(
        ["<tool_result>one</tool_result>", "and", "<tool_result>two</tool_result>", "<tool_result>three</tool_result>"]
    )
    assert prompt.endswith(f"{E}{U}{turn}\n\nso?\n\nwell?{A}</think>")
    assert '<｜DSML｜invoke name="f">\n\n</｜DSML｜invoke>\n<｜DSML｜invoke name="g">' in prompt
    assert encode([result("x")]) == f"{B}{U}<tool_result>x</tool_result>{A}</think>"


def test_results_with_unknown_and_repeated_ids() -> None:
    calls = [call("f", {}, "1"), call("g", {}), call("h", {}, "1"), call("i", {}, "4")]
    results = [result("four", "4"), result("one", "1"), result("unknown", "x"), result("none")]
    prompt = encode([user("a"), assistant("", tool_calls=calls), *results])
    order = [part.split("</")[0] for part in prompt.split("<tool_result>")[1:]]
    assert order == ["unknown", "none", "one", "four"]  # unknown: first call; a repeated id: its last call
    without_ids = [user("a"), assistant("", tool_calls=[call("f", {}), call("g", {})]), *results]
    assert [part.split("</")[0] for part in encode(without_ids).split("<tool_result>")[1:]] == [
        "four", "one", "unknown", "none",
    ]  # fmt: skip


def test_developer_turns_before_the_last_question_go_with_the_old_reasoning() -> None:
    developer = {"role": "developer", "content": "rules"}
    messages = [system("s"), developer, assistant("x", reasoning_content="r"), user("q")]
    assert encode(messages, thinking_mode="thinking") == f"{B}sx{E}{U}q{A}<think>"
    assert encode(messages, thinking_mode="chat") == f"{B}s{U}rules{A}</think>x{E}{U}q{A}</think>"
    last = [system("s"), user("q"), assistant("x", reasoning_content="r"), developer]
    assert encode(last, thinking_mode="thinking") == f"{B}s{U}q{A}</think>x{E}{U}rules{A}<think>"


def test_without_a_question_reasoning_stays() -> None:
    messages = [system("s"), assistant("x", reasoning_content="r"), assistant("y", reasoning_content="t")]
    assert encode(messages, thinking_mode="thinking") == f"{B}sr</think>x{E}t</think>y{E}"


@pytest.mark.parametrize("task", ["query", "authority", "domain", "title", "read_url"])
def test_deepseek_v4_renders_quick_instructions(task: str) -> None:
    messages = [user("a", task=task)]
    assert encode(messages, thinking_mode="thinking") == f"{B}{U}a<｜{task}｜>"
    answered = [*messages, assistant("b", reasoning_content="r"), user("c")]
    prompt = encode(answered, thinking_mode="thinking", drop_thinking=False)
    assert prompt == f"{B}{U}a<｜{task}｜>b{E}{U}c{A}<think>"


def test_the_action_task_opens_an_answer_and_a_task_ends_the_turn() -> None:
    assert encode([user("a", task="action")], thinking_mode="thinking") == f"{B}{U}a{A}<think><｜action｜>"
    assert encode([user("a", task="action")], thinking_mode="chat") == f"{B}{U}a{A}</think><｜action｜>"
    assert encode([user("a", task="title"), user("b")]) == f"{B}{U}a{U}b{A}</think>"
    assert encode([user("a"), user("b", task="title")]) == f"{B}{U}a\n\nb{A}</think>"


def test_deepseek_v4_renders_reminders_and_open_answers() -> None:
    reminder = {"role": "latest_reminder", "content": "today"}
    assert encode([reminder, user("a")]) == f"{B}<｜latest_reminder｜>today{U}a{A}</think>"
    assert encode([user("a"), reminder]) == f"{B}{U}a{A}</think><｜latest_reminder｜>today"
    assert encode([user("a"), assistant("b", wo_eos=True)]) == f"{B}{U}a{A}</think>b"


def test_effort_texts_come_first_and_only_when_thinking() -> None:
    messages = [system("s"), user("a")]
    absolute, beyond = EFFORT_TEXTS["original"]["max"], EFFORT_TEXTS["0731"]["max"]
    assert absolute.startswith("Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be")
    assert beyond.startswith("Reasoning Effort: Beyond maximum — exhaustive")
    assert absolute.endswith("unchecked.\n\n")
    assert beyond.endswith("undiscovered.\n\n")
    rest = f"s{U}a{A}<think>"

    def prompt(effort: str, revision: Any = "original") -> str:
        return encode(messages, thinking_mode="thinking", reasoning_effort=effort, effort_revision=revision)

    for effort in ("minimal", "low", "medium", "high"):
        assert prompt(effort) == f"{B}{rest}"
    assert prompt("max") == prompt("xhigh") == f"{B}{absolute}{rest}"
    assert prompt("low", "0731") == prompt("minimal", "0731") == f"{B}{rest}"
    assert prompt("high", "0731") == prompt("medium", "0731") == f"{B}{absolute}{rest}"
    assert prompt("max", "0731") == prompt("xhigh", "0731") == f"{B}{beyond}{rest}"
    assert encode(messages, thinking_mode="chat", reasoning_effort="max") == f"{B}s{U}a{A}</think>"


def test_deepseek_v4_renders_arguments_of_any_shape() -> None:
    def rendered(arguments: Any) -> str:
        prompt = encode([user("a"), assistant("", tool_calls=[call("f", arguments)])])
        return prompt.partition('<｜DSML｜invoke name="f">\n')[2].partition("\n</｜DSML｜invoke>")[0]

    def parameter(key: str, is_string: str, text: str) -> str:
        return f'<｜DSML｜parameter name="{key}" string="{is_string}">{text}</｜DSML｜parameter>'

    assert rendered("") == rendered(None) == rendered({}) == ""
    assert rendered("not json") == parameter("arguments", "true", "not json")
    assert rendered([1, "ü"]) == parameter("arguments", "false", '[1, "ü"]')
    values = {"a": "1", "b": None, "c": {"k": [True, 1.5]}}
    assert (
        rendered(values)
        == rendered(json.dumps(values))
        == "\n".join(
            [
                parameter("a", "true", "1"),
                parameter("b", "false", "null"),
                parameter("c", "false", '{"k": [true, 1.5]}'),
            ]
        )
    )


@pytest.mark.parametrize(
    ("messages", "options", "param"),
    [
        ([{"role": "developer", "content": ""}], {}, "messages"),
        ([{"role": "critic", "content": "x"}], {}, "messages"),
        ([user("a", task="sing")], {}, "messages"),
        ([assistant("", tool_calls=[{"function": {}}])], {}, "messages"),
        ([assistant("", tool_calls=["f"])], {}, "messages"),
        ([user("a")], {"thinking_mode": "deep"}, "thinking_mode"),
        ([user("a")], {"reasoning_effort": "heroic"}, "reasoning_effort"),
        ([user("a")], {"tools": [{1: 2}]}, "tools"),
    ],
)
def test_what_has_no_place_in_the_prompt_is_refused(messages: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        encode(messages, **options)
    assert caught.value.param == param


def test_parts_that_are_not_text_are_refused() -> None:
    with pytest.raises(UnsupportedFeatureError):
        encode([user("x") | {"content": [{"type": "image_url", "image_url": {}}]}])
    assert encode([user("") | {"content": [{"type": "text", "text": "a"}]}]) == f"{B}{U}a{A}</think>"


def test_the_callers_messages_stay_as_they_were() -> None:
    messages = [
        user("a"),
        assistant("b", reasoning_content="r", tool_calls=[call("f", "{}", "2"), call("g", "{}", "1")]),
        result("x", "1"),
        result("y", "2"),
        user("c"),
    ]
    tools = [copy.deepcopy(TOOL)]
    before = copy.deepcopy((messages, tools))
    encode(messages, tools=tools, thinking_mode="thinking", response_format={"type": "json_object"})
    encode(messages, thinking_mode="thinking")
    assert (messages, tools) == before


def test_the_format_is_found_by_the_family() -> None:
    assert find_chat_format("llama") is None
    original = find_chat_format("deepseek_v4", "DeepSeek-V4-Flash")
    later = find_chat_format("deepseek_v4", "DeepSeek-V4-Flash-0731")
    assert original is not None
    assert later is not None
    messages = [user("a")]
    assert original.encode(messages) == later.encode(messages) == encode(messages)
    absolute = EFFORT_TEXTS["original"]["max"]
    assert absolute not in original.encode(messages, thinking_mode="thinking", reasoning_effort="high")
    assert absolute in later.encode(messages, thinking_mode="thinking", reasoning_effort="high")


# What DSML cannot say: the closing tag inside a string, and names with quotes, brackets or line ends.
_text = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "</｜DSML｜parameter>" not in text)
_name = st.text(st.characters(exclude_categories=["Cs"], exclude_characters='"<>\n'), min_size=1)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(_name, _values, max_size=4)


@given(calls=st.lists(st.tuples(_name, _objects), min_size=1, max_size=3), content=_text)
def test_rendered_calls_parse_to_equal_arguments(calls: list[tuple[str, dict[str, Any]]], content: str) -> None:
    text = content + render_calls(calls)
    parsed = DeepSeekDsml().parse(text, None)
    if "<｜DSML｜" in content:
        return
    assert parsed is not None
    assert parsed.content == content
    assert [(one.name, json.loads(one.arguments)) for one in parsed.calls] == calls
    stream = DeepSeekDsml().stream(None)
    deltas = [stream.feed(char) for char in text] + [stream.finish()]
    assert "".join(delta.content for delta in deltas) == content
    found = join_calls(one for delta in deltas for one in delta.calls)
    assert [(one.name, json.loads(one.arguments)) for one in found] == calls


@given(arguments=_objects, reasoning=st.text("ab \n"))
def test_an_answer_sent_back_renders_to_the_text_the_model_wrote(arguments: dict[str, Any], reasoning: str) -> None:
    written = f"{reasoning}</think>So.{render_calls([('f', arguments)])}{E}"
    answer = written.removesuffix(E).partition("</think>")
    parsed = DeepSeekDsml().parse(answer[2], [TOOL])
    assert parsed is not None
    (one,) = parsed.calls
    replayed = assistant(parsed.content, reasoning_content=answer[0], tool_calls=[call(one.name, one.arguments, "c")])
    question = [user("q")]
    options: dict[str, Any] = {"tools": [TOOL], "thinking_mode": "thinking"}
    prompt = encode(question, **options) + written
    assert encode([*question, replayed, result("r", "c")], **options).startswith(prompt)
