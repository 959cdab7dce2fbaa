"""When text and calls leave the stream, and what becomes of a fault."""

from __future__ import annotations

import tracemalloc

import pytest

from pocketllm.text.tool_calls import CallDelta, DeepSeekDsml, HermesJson, Llama3Json, QwenXml, ToolDelta

CALL = "<tool_call>\n<function=f>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call>"


def test_content_passes_at_once() -> None:
    stream = QwenXml().stream(None)
    for piece in ("Hello", ", ", "a < b", " <tool", "box> and", " <b>"):
        held = " " if piece == ", " else "<tool" if piece == " <tool" else ""
        content = stream.feed(piece).content
        assert content.endswith(piece.removesuffix(held).strip())
    assert stream.finish() == ToolDelta()
    assert (stream.num_calls, stream.calls_complete) == (0, False)


def test_white_space_that_may_stand_before_a_call_waits() -> None:
    stream = QwenXml().stream(None)
    assert stream.feed("Hi.\n\n").content == "Hi."
    assert stream.feed("So").content == "\n\nSo"
    assert stream.feed(" \n<tool_c").content == ""
    assert stream.finish().content == " \n<tool_c"


def test_a_call_leaves_at_the_end_name_first() -> None:
    stream = QwenXml().stream(None, new_id=lambda: "one")
    assert stream.feed("Hi.\n" + CALL) == ToolDelta("Hi.")
    assert stream.num_calls == 0
    assert stream.finish() == ToolDelta(
        calls=(CallDelta(0, id="one", name="f"), CallDelta(0, arguments_delta='{"a": "b"}'))
    )
    assert (stream.num_calls, stream.calls_complete) == (1, True)
    assert stream.feed("more") == stream.finish() == ToolDelta()


def test_a_fault_frees_the_held_text_at_once_and_for_good() -> None:
    stream = QwenXml().stream(None)
    stream.feed("Use <tool_call>")
    assert stream.feed(" in prose").content == " <tool_call> in prose"
    assert stream.feed(CALL).content == CALL
    assert stream.finish() == ToolDelta()


def test_prose_behind_a_call_frees_it() -> None:
    stream = QwenXml().stream(None)
    assert stream.feed(CALL).content == ""
    assert stream.feed("\n").content == ""
    assert stream.feed("So").content == CALL + "\nSo"
    assert not stream.calls_complete


def test_eager_calls_leave_as_they_come() -> None:
    stream = QwenXml().stream(None, eager=True, new_id=lambda: "one")
    assert stream.feed("Hi.\n<tool_call>\n<function=f") == ToolDelta("Hi.")
    assert stream.feed(">") == ToolDelta(calls=(CallDelta(0, id="one", name="f"),))
    assert stream.feed("<parameter=a>\nb").calls == (CallDelta(0, arguments_delta='{"a": "b'),)
    assert stream.feed("\n</parameter>") == ToolDelta()
    assert stream.feed("</function>").calls == (CallDelta(0, arguments_delta='"}'),)
    assert stream.feed("</tool_call>") == stream.finish() == ToolDelta()
    assert stream.calls_complete


def test_eager_typed_values_wait_until_they_are_whole() -> None:
    tools = [{"function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}}]
    stream = QwenXml().stream(tools, eager=True)
    stream.feed("<tool_call><function=f><parameter=n>")
    assert stream.feed("12").calls == ()
    assert stream.feed("3</parameter></function>").calls == (CallDelta(0, arguments_delta="123}"),)


def test_an_eager_call_stays_when_prose_follows() -> None:
    stream = QwenXml().stream(None, eager=True)
    stream.feed(CALL)
    assert stream.feed("\nSo").content == "So"
    assert stream.feed(" on").content == " on"
    stream.finish()
    assert (stream.num_calls, stream.calls_complete) == (1, True)


def test_an_eager_call_that_breaks_off_is_not_complete() -> None:
    stream = QwenXml().stream(None, eager=True)
    stream.feed(CALL[:-20])
    assert stream.finish().content == ""
    assert (stream.num_calls, stream.calls_complete) == (1, False)


def test_eager_json_arguments_pass_through() -> None:
    for syntax, text in (
        (HermesJson(), '<tool_call>{"name": "f", "arguments": {"a": '),
        (Llama3Json(), '<|python_tag|>{"name": "f", "parameters": {"a": '),
    ):
        stream = syntax.stream(None, eager=True)
        assert [call.name or call.arguments_delta for call in stream.feed(text).calls] == ["f", '{"a": ']
        assert [call.arguments_delta for call in stream.feed('"}').calls] == ['"}']


def test_dsml_gives_the_content_back_to_the_letter() -> None:
    tail = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    for content in ("", "Hi.", "Hi. \n", " "):
        for eager in (False, True):
            stream = DeepSeekDsml().stream(None, eager=eager)
            deltas = [stream.feed(char) for char in f"{content}\n\n{tail}"] + [stream.finish()]
            assert "".join(delta.content for delta in deltas) == content
            assert stream.calls_complete


def test_bare_json_needs_the_name_of_a_tool() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = '{"name": "g", "parameters": {}}'
    assert Llama3Json().parse(answer, tools) is None
    assert Llama3Json().parse(answer, None) is None
    stream = Llama3Json().stream(tools)
    assert stream.feed('\n{"name": "g"').content == '\n{"name": "g"'
    assert Llama3Json().parse(answer.replace("g", "f"), tools) is not None


def test_reprs_show_no_arguments() -> None:
    stream = QwenXml().stream(None)
    stream.feed(CALL.replace("b", "secret"))
    assert "secret" not in repr(stream.finish().calls)
    assert "secret" not in repr(QwenXml().parse(CALL.replace("\nb", "\nsecret"), None))


@pytest.mark.parametrize("eager", [False, True])
def test_a_long_value_in_small_pieces_takes_memory_in_proportion(eager: bool) -> None:
    stream = QwenXml().stream(None, eager=eager)
    stream.feed("<tool_call><function=f><parameter=a>")
    tracemalloc.start()
    for _ in range(40_000):
        stream.feed("abcd ")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 200,000 characters; held as pieces of their own when nothing may leave yet.
    assert peak < (2_000_000 if eager else 20_000_000)
    stream.feed("</parameter></function></tool_call>")
    assert sum(len(call.arguments_delta) for call in stream.finish().calls) == (
        0 if eager else 200_000 + len('{"a": ""}')
    )
