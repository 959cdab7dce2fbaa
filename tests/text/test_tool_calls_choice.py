"""Calls in the text of a choice: behind the reasoning split, stop strings and stages."""

from __future__ import annotations

from typing import Any

from pocketllm.text.choice import ChoiceText, TextDelta
from pocketllm.text.tool_calls import QwenXml
from tests.text.joined_calls import join_calls

CALL = "<tool_call>\n<function=f>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call>"


def run(text: str, size: int, **options: Any) -> tuple[str, str, list[tuple[str, str]], ChoiceText]:
    choice = ChoiceText(None, tool_calls=QwenXml().stream(None), **options)
    deltas: list[TextDelta] = []
    for start in range(0, len(text), size):
        deltas.append(choice.feed_text(text[start : start + size], num_tokens=1))
    deltas.append(choice.finish())
    calls = join_calls(call for delta in deltas for call in delta.calls)
    content = "".join(delta.content for delta in deltas)
    reasoning = "".join(delta.reasoning for delta in deltas)
    return content, reasoning, [(call.name, call.arguments) for call in calls], choice


def test_a_call_behind_reasoning_is_found_and_one_inside_is_not() -> None:
    text = f"I could write {CALL} here.\n</think>\n\n{CALL}"
    for size in (1, 5, len(text)):
        content, reasoning, calls, choice = run(text, size, reasoning_mode="open")
        assert (content, calls) == ("", [("f", '{"a": "b"}')])
        assert reasoning == f"I could write {CALL} here."
        assert choice.calls_complete
    content, reasoning, calls, choice = run(CALL, 3, reasoning_mode="open")
    assert (content, reasoning, calls) == ("", CALL, [])
    assert not choice.calls_complete


def test_a_stop_string_inside_a_call_leaves_its_text() -> None:
    for size in (1, 4, 1000):
        content, _, calls, choice = run(f"Hi.\n{CALL}", size, stop=["</function>"])
        assert (content, calls) == ("Hi.\n" + CALL[: CALL.index("</function>")], [])
        assert choice.stopped
        assert not choice.calls_complete


def test_a_stop_string_behind_a_call_leaves_the_call() -> None:
    for size in (1, 4, 1000):
        content, _, calls, choice = run(f"Hi.\n{CALL}\n<|end|> more", size, stop=["<|end|>"])
        assert (content, calls) == ("Hi.", [("f", '{"a": "b"}')])
        assert choice.calls_complete


def test_usage_counts_the_tokens_of_calls() -> None:
    *_, choice = run(CALL, 1)
    assert choice.offsets.num_used == choice.offsets.num_in_text == len(CALL)


def test_without_a_stream_calls_stay_in_the_content() -> None:
    choice = ChoiceText(None)
    delta = choice.feed_text(CALL)
    assert delta.content + choice.finish().content == CALL
    assert delta.calls == ()
    assert not choice.calls_complete
