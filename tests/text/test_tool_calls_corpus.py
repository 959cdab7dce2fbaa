"""Every syntax over its corpus: the whole-text parser finds what is meant, the streaming one the same, however cut."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketllm.text.tool_calls import CallDelta, ParsedCall, ParsedCalls, Tools
from tests.text.joined_calls import join_calls
from tests.text.tool_call_corpus import CORPUS, SYNTAXES, TOOLS, Completion

CASES = [(name, completion) for name, completions in CORPUS.items() for completion in completions]
Outcome = tuple[str, tuple[tuple[str, str], ...], bool]

# What random completions are put together from.
PIECES = {
    "qwen_xml": ["<tool_call>", "</tool_call>", "<function=write>", "</function>", "<parameter=text>", "</parameter>",
                 "<parameter=count>", "\n", "\n", " ", "x", "3", "<", "<function=", ">", "</"],
    "hermes_json": ["<tool_call>", "</tool_call>", '{"name": "write"', '"name"', "{", "}", "}", '"arguments"', ":",
                    ", ", '{"a": "}"}', "[", "]", '"', "\\", "\n", "x", "1", "null", "<"],
    "llama3_json": ["<|python_tag|>", '{"name": "write"', "{", "}", "}", '"parameters": ', '"name": ', '"look"', ", ",
                    '{"a": "{"}', ";", " ", '"', "\\", "x", "<|"],
    "deepseek_dsml": ["<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "</｜DSML｜invoke>", "</｜DSML｜parameter>",
                      '<｜DSML｜invoke name="write">', '<｜DSML｜parameter name="text" string="true">',
                      '<｜DSML｜parameter name="input" string="false">', '{"text": "y"}', "<", "｜DSML｜", "\n", "\n\n",
                      " ", "x", "3"],
}  # fmt: skip


def stream(name: str, pieces: Iterable[str], *, eager: bool = False, tools: Tools = TOOLS) -> Outcome:
    numbers = itertools.count()
    parser = SYNTAXES[name].stream(tools, eager=eager, new_id=lambda: f"id{next(numbers)}")
    deltas = [parser.feed(piece) for piece in pieces]
    if not eager:
        assert not any(delta.calls for delta in deltas)  # nothing leaves before it is certain
    deltas.append(parser.finish())
    call_deltas = [call for delta in deltas for call in delta.calls]
    check_order(call_deltas)
    calls = join_calls(call_deltas)
    assert [call.id for call in calls] == [f"id{number}" for number in range(len(calls))]
    assert parser.num_calls == len(calls)
    content = "".join(delta.content for delta in deltas)
    return content, tuple((call.name, call.arguments) for call in calls), parser.calls_complete


def check_order(deltas: Sequence[CallDelta]) -> None:
    """Name and id first and alone, then arguments; one call after the other, counted from 0."""
    last = -1
    for delta in deltas:
        if delta.name is not None:
            assert (delta.index, delta.arguments_delta) == (last + 1, "")
            assert delta.id
            last = delta.index
        else:
            assert (delta.index, delta.id) == (last, None)
            assert delta.arguments_delta


def expected(text: str, parsed: ParsedCalls | None) -> Outcome:
    if parsed is None:
        return text, (), False
    return parsed.content, tuple((call.name, call.arguments) for call in parsed.calls), True


def cut(text: str, places: Iterable[int]) -> list[str]:
    ends = sorted(places)
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


@pytest.mark.parametrize("name", CORPUS)
def test_there_are_enough_different_completions(name: str) -> None:
    texts = {completion.text for completion in CORPUS[name]}
    assert len(texts) >= 200
    assert sum(completion.calls is not None for completion in CORPUS[name]) >= 100
    assert sum(completion.calls is None for completion in CORPUS[name]) >= 80


@pytest.mark.parametrize(("name", "completion"), CASES, ids=lambda case: case if isinstance(case, str) else "")
def test_the_whole_text_parser_finds_what_is_meant(name: str, completion: Completion) -> None:
    parsed = SYNTAXES[name].parse(completion.text, TOOLS)
    if completion.calls is None:
        assert parsed is None
        return
    assert parsed is not None
    assert parsed.content == completion.content
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == completion.calls
    for call, (_, arguments) in zip(parsed.calls, completion.calls, strict=True):
        assert list(json.loads(call.arguments)) == list(arguments)  # in order of appearance


@pytest.mark.parametrize("name", CORPUS)
def test_every_single_cut_and_one_character_at_a_time(name: str) -> None:
    for completion in CORPUS[name]:
        text = completion.text
        wanted = expected(text, SYNTAXES[name].parse(text, TOOLS))
        assert stream(name, [text]) == stream(name, text) == wanted, text
        for place in range(1, len(text)):
            assert stream(name, (text[:place], text[place:])) == wanted, (text, place)


@pytest.mark.parametrize("name", CORPUS)
def test_eager_calls_are_the_same_for_every_cut(name: str) -> None:
    for number, completion in enumerate(CORPUS[name]):
        text = completion.text
        whole = stream(name, [text], eager=True)
        if completion.calls is not None:
            assert whole == expected(text, SYNTAXES[name].parse(text, TOOLS)), text
        assert stream(name, text, eager=True) == whole, text
        for place in range(1 + number % 3, len(text), 3):
            assert stream(name, (text[:place], text[place:]), eager=True) == whole, (text, place)


@pytest.mark.parametrize("name", CORPUS)
def test_random_cuts_with_and_without_tools(name: str) -> None:
    rng = random.Random(5)
    for completion in CORPUS[name]:
        for tools in (TOOLS, None):
            wanted = expected(completion.text, SYNTAXES[name].parse(completion.text, tools))
            for _ in range(3):
                places = [rng.randrange(len(completion.text) + 1) for _ in range(rng.randrange(12))]
                assert stream(name, cut(completion.text, places), tools=tools) == wanted, completion.text


@pytest.mark.parametrize("name", CORPUS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_completions_are_read_alike_in_random_pieces(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES[name]), max_size=25)))
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    parsed = SYNTAXES[name].parse(text, TOOLS)
    assert stream(name, cut(text, places)) == expected(text, parsed)
    eagerly = stream(name, cut(text, places), eager=True)
    assert eagerly == stream(name, [text], eager=True)
    if parsed is not None:
        assert eagerly == expected(text, parsed)


@pytest.mark.parametrize("name", CORPUS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_completions_are_read_alike_in_any_pieces(name: str, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(CORPUS[name])).text
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text)))
        removed = data.draw(st.integers(0, 3))
        text = text[:place] + data.draw(st.sampled_from(["", *PIECES[name]])) + text[place + removed :]
    wanted = expected(text, SYNTAXES[name].parse(text, TOOLS))
    assert stream(name, text) == stream(name, [text]) == wanted
    assert stream(name, text, eager=True) == stream(name, [text], eager=True)


@pytest.mark.parametrize("name", CORPUS)
def test_arguments_are_always_a_json_object(name: str) -> None:
    for completion in CORPUS[name]:
        for call in (SYNTAXES[name].parse(completion.text, None) or ParsedCalls("", ())).calls:
            assert isinstance(call, ParsedCall)
            assert isinstance(json.loads(call.arguments), dict)
