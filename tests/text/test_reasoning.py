"""Reasoning is split off once, at the start, the same at every cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.errors import ConfigurationError
from pocketllm.text.reasoning import ReasoningMode, ReasoningSplitter, detect_mode

PARTS = st.lists(
    st.sampled_from(["<think>", "</think>", "\n", " ", "a", "<", "</", "thi", "nk>", "é", "<tool_call>"]), max_size=10
).map("".join)


def split(mode: str, pieces: list[str], **tags: str) -> tuple[str, str]:
    splitter = ReasoningSplitter(mode, **tags)
    deltas = [*(splitter.feed(piece) for piece in pieces), splitter.finish()]
    assert splitter.num_resolved == sum(map(len, pieces))
    return "".join(reasoning for reasoning, _ in deltas), "".join(content for _, content in deltas)


def reference(mode: str, text: str) -> tuple[str, str]:
    """The rules on a whole text."""
    if mode == "none":
        return "", text
    stripped = text.lstrip()
    has_tag = stripped.startswith("<think>") and len(text) - len(stripped) <= 16
    if mode == "auto" and not has_tag:
        return "", text
    body = stripped.removeprefix("<think>") if has_tag else text
    reasoning, _, content = body.partition("</think>")
    return reasoning.strip("\n"), content.lstrip("\n")


@pytest.mark.parametrize(
    "mode, text, reasoning, content",
    [
        ("open", "I add.\n</think>\n\nFour.", "I add.", "Four."),
        ("open", "<think>\nI add.</think>Four.", "I add.", "Four."),
        ("open", "\ncut off in the mid", "cut off in the mid", ""),
        ("open", "a</think>b<think>c</think>d", "a", "b<think>c</think>d"),
        ("open", "a\n\nb\n</think>", "a\n\nb", ""),
        ("open", "call <tool_call> x </think>\n y", "call <tool_call> x ", " y"),
        ("none", "a</think>\nb", "", "a</think>\nb"),
        ("none", "\n\nHi", "", "\n\nHi"),
        ("auto", "<think>\nhm\n</think>\n\nyes", "hm", "yes"),
        ("auto", "\n<think>hm</think>yes", "hm", "yes"),
        ("auto", "no tag </think> here", "", "no tag </think> here"),
        ("auto", "<thin", "", "<thin"),
        ("auto", "\n\n plain", "", "\n\n plain"),
        ("auto", "<think></think>x", "", "x"),
        ("open", "a</thi", "a</thi", ""),
        ("auto", " " * 17 + "<think>a</think>", "", " " * 17 + "<think>a</think>"),
    ],
)
def test_reasoning_is_split_alike_at_every_cut(mode: str, text: str, reasoning: str, content: str) -> None:
    assert reference(mode, text) == (reasoning, content)
    for first in range(len(text) + 1):
        assert split(mode, [text[:first], text[first:]]) == (reasoning, content)
    assert split(mode, list(text)) == (reasoning, content)


@given(mode=st.sampled_from(list(ReasoningMode)), text=PARTS, places=st.lists(st.integers(0, 60), max_size=5))
def test_any_cut_agrees_with_the_rules(mode: str, text: str, places: list[int]) -> None:
    ends = sorted({place % (len(text) + 1) for place in places})
    pieces = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    assert split(mode, pieces) == reference(mode, text)


def test_partial_tags_are_held_and_only_those() -> None:
    splitter = ReasoningSplitter("open")
    assert splitter.feed("abc</th") == ("abc", "")
    assert splitter.feed("ey\n") == ("</they", "")
    assert splitter.feed("\nso</think>") == ("\n\nso", "")
    assert splitter.feed("\n") == ("", "")
    assert not splitter.in_content
    assert splitter.feed("\nyes\n") == ("", "yes\n")
    assert splitter.in_content
    assert splitter.content_start == 23


def test_finish_turns_the_rest_into_content() -> None:
    splitter = ReasoningSplitter("open")
    splitter.feed("thought")
    splitter.finish()
    assert splitter.feed("answer") == ("", "answer")


def test_reasoning_may_have_other_delimiters() -> None:
    tags = {"start_tag": "[R]", "end_tag": "[/R]"}
    assert split("auto", ["[R", "]why[/", "R]because"], **tags) == ("why", "because")


@pytest.mark.parametrize(
    "prompt, mode",
    [
        ("<|im_start|>assistant\n<think>\n", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "none"),
        ("<|im_start|>assistant\n", "auto"),
        ("<｜User｜>what is <think>?<｜Assistant｜></think>", "none"),
        ("say <think> to me<|im_end|>\n<|im_start|>assistant\n", "auto"),
        ("", "auto"),
    ],
)
def test_the_end_of_a_prompt_tells_the_mode(prompt: str, mode: str) -> None:
    assert detect_mode(prompt) == mode


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ConfigurationError, match="'sometimes' is unknown; use one of none, open, auto"):
        ReasoningSplitter("sometimes")
    with pytest.raises(ConfigurationError, match="must not be empty"):
        ReasoningSplitter("open", end_tag="")
