"""The prompt of DeepSeek-V4, which ships without a chat template.

A conversation becomes turns (tool results join the user's turn), and turns become text, each control token written out.
Encode the result without adding special tokens, but parse the special tokens in it. Pure; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from pocketllm.errors import ConfigurationError
from pocketllm.text.reasoning import END_TAG, START_TAG
from pocketllm.text.template_values import plain_copy, template_messages
from pocketllm.text.tool_calls.deepseek_dsml import DSML, render_calls

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT, REMINDER = "<｜User｜>", "<｜Assistant｜>", "<｜latest_reminder｜>"
TASKS = ("action", "query", "authority", "domain", "title", "read_url")

EffortRevision = Literal["original", "0731"]

_ABSOLUTE = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
_BEYOND = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n"
)
# What each word puts in front of the prompt; the later release moved every level down by one.
EFFORT_TEXTS: Mapping[EffortRevision, Mapping[str, str]] = {
    "original": {"minimal": "", "low": "", "medium": "", "high": "", "xhigh": _ABSOLUTE, "max": _ABSOLUTE},
    "0731": {"minimal": "", "low": "", "medium": _ABSOLUTE, "high": _ABSOLUTE, "xhigh": _BEYOND, "max": _BEYOND},
}

_TOOLS = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<{DSML}tool_calls>" block like the following:

<{DSML}tool_calls>
<{DSML}invoke name="$TOOL_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$TOOL_NAME2">
...
</{DSML}invoke>
</{DSML}tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {START_TAG}), you MUST output your complete reasoning inside \
{START_TAG}...{END_TAG} BEFORE any tool calls or final response.

Otherwise, output directly after {END_TAG} with tool calls or final response.

### Available Tool Schemas

"""
_AFTER_TOOLS = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
_RESPONSE_FORMAT = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"


class _Block(msgspec.Struct):
    """Part of a user turn: text, or the result of a tool call (then ``is_result``, with the call's id)."""

    text: str
    is_result: bool = False
    call_id: str = ""


class _Turn(msgspec.Struct):
    role: str
    content: str = ""
    blocks: list[_Block] = []
    reasoning: str = ""
    calls: list[dict[str, Any]] = []
    tools: list[Any] = []
    response_format: Any = None
    task: str | None = None
    without_eos: bool = False

    @property
    def is_user_like(self) -> bool:
        return self.role in ("user", "developer")


class DeepSeekV4Format:
    """The format with the effort texts of one release of the weights."""

    name = "deepseek_v4"

    def __init__(self, effort_revision: EffortRevision = "original") -> None:
        self.effort_revision: EffortRevision = effort_revision

    def recognises(self, model_type: str) -> bool:
        return model_type == "deepseek_v4"

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking_mode: str = "chat",
        reasoning_effort: str | None = None,
        drop_thinking: bool = True,
        response_format: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        return encode(
            messages,
            tools=tools,
            thinking_mode=thinking_mode,
            reasoning_effort=reasoning_effort,
            drop_thinking=drop_thinking,
            response_format=response_format,
            add_generation_prompt=add_generation_prompt,
            effort_revision=self.effort_revision,
        )


def encode(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking_mode: str = "chat",
    reasoning_effort: str | None = None,
    drop_thinking: bool = True,
    response_format: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
    effort_revision: EffortRevision = "original",
) -> str:
    """The prompt text of a conversation.

    Args:
        messages: OpenAI messages with the roles system, developer, user, assistant, tool and latest_reminder. Read
            beside the usual fields: ``reasoning_content`` or ``reasoning``, ``task``, ``wo_eos``, and on system and
            developer messages ``tools`` and ``response_format``.
        tools, response_format: go to the first system or developer message; without one, to an empty system message
            put in front. A format of type ``text`` says nothing.
        thinking_mode: ``thinking`` or ``chat``.
        reasoning_effort: none (which means chat), minimal, low, medium, high, xhigh or max; None says nothing.
        drop_thinking: leave out the reasoning of answers before the last question. Never happens with tools, whose
            calls depend on it.
        add_generation_prompt: end with the opening of an answer.

    Raises:
        ConfigurationError: a message, mode, effort or task is not as described.
        UnsupportedFeatureError: a message has parts that are not text.
    """
    if thinking_mode not in ("thinking", "chat"):
        raise ConfigurationError(
            f"thinking_mode {thinking_mode!r} is unknown; use thinking or chat.", param="thinking_mode"
        )
    turns = _merged(template_messages(messages))
    _attach(turns, tools, response_format)
    _sort_results(turns)
    thinking = thinking_mode == "thinking" and reasoning_effort != "none"
    effort_text = _effort_text(reasoning_effort, effort_revision)
    dropping = drop_thinking and not any(turn.tools for turn in turns)
    if thinking and dropping:
        turns = _without_old_reasoning(turns)
    last_question = _last_question(turns)
    pieces = [BOS]
    if thinking and turns:
        pieces.append(effort_text)
    for index, turn in enumerate(turns):
        follower = turns[index + 1].role if index + 1 < len(turns) else None
        # Whether this turn's answer comes with reasoning, and whether this turn's own reasoning is shown.
        answers_openly = thinking and (not dropping or index >= last_question)
        shows_reasoning = thinking and (not dropping or index > last_question)
        if turn.role == "assistant":
            after_task = index > 0 and turns[index - 1].task is not None
            pieces.append(_answer(turn, shows_reasoning and not after_task))
        else:
            pieces.append(_question(turn))
        if follower in ("assistant", "latest_reminder") or (follower is None and add_generation_prompt):
            pieces.append(_transition(turn, thinking, answers_openly))
    return "".join(pieces)


def _effort_text(effort: str | None, revision: EffortRevision) -> str:
    texts = {"none": "", **EFFORT_TEXTS[revision]}
    if effort is not None and effort not in texts:
        raise ConfigurationError(
            f"reasoning_effort {effort!r} is unknown; use one of {', '.join(texts)}.", param="reasoning_effort"
        )
    return texts.get(effort or "", "")


def _merged(messages: list[dict[str, Any]]) -> list[_Turn]:
    """Turns, with tool results and consecutive user texts gathered in one user turn as far as tasks allow."""
    turns: list[_Turn] = []
    for index, message in enumerate(messages):
        role, content = message["role"], message["content"]
        last = turns[-1] if turns and turns[-1].role == "user" else None
        if role == "tool":
            block = _Block(content, is_result=True, call_id=str(message.get("tool_call_id", "")))
            if last is None:
                turns.append(_Turn("user", blocks=[block]))
            else:
                last.blocks.append(block)
        elif role == "user" and last is not None and last.task is None:
            last.blocks.append(_Block(content))
        else:
            turns.append(_turn(message, f"messages[{index}]"))
    return turns


def _turn(message: dict[str, Any], where: str) -> _Turn:
    role, task = message["role"], message.get("task")
    if role not in ("system", "developer", "user", "assistant", "latest_reminder"):
        raise ConfigurationError(
            f"{where}.role {role!r} has no place in this model's prompt; use system, developer, user, assistant, tool "
            "or latest_reminder.",
            param="messages",
        )
    if role == "developer" and not message["content"]:
        raise ConfigurationError(f"{where}.content is empty; a developer message needs text.", param="messages")
    if task is not None and task not in TASKS:
        raise ConfigurationError(f"{where}.task {task!r} is unknown; use one of {', '.join(TASKS)}.", param="messages")
    calls = message.get("tool_calls") or []
    return _Turn(
        role,
        content=message["content"],
        blocks=[_Block(message["content"])] if role == "user" else [],
        reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
        calls=[_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)],
        tools=message.get("tools") or [],
        response_format=message.get("response_format"),
        task=task,
        without_eos=bool(message.get("wo_eos")),
    )


def _call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ConfigurationError(f"{where} is not a call; send it with function.name and arguments.", param="messages")
    arguments = function.get("arguments")
    return {
        "id": call.get("id") or function.get("id"),
        "name": function["name"],
        # A string that holds an object has been parsed; anything else is kept whole under one key.
        "arguments": arguments
        if isinstance(arguments, dict)
        else {}
        if arguments is None
        else {"arguments": arguments},
    }


def _attach(turns: list[_Turn], tools: object, response_format: object) -> None:
    definitions = plain_copy(tools, "tools") or []
    wanted = plain_copy(response_format, "response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "text":
        wanted = None
    if not definitions and wanted is None:
        return
    target = next((turn for turn in turns if turn.role in ("system", "developer")), None)
    if target is None:
        target = _Turn("system")
        turns.insert(0, target)
    target.tools = definitions or target.tools
    target.response_format = wanted if wanted is not None else target.response_format


def _sort_results(turns: list[_Turn]) -> None:
    """Bring the results in each user turn, among their own places, into the order of the calls they answer."""
    order: dict[str, int] = {}
    for turn in turns:
        if turn.calls:
            order = {str(call["id"]): index for index, call in enumerate(turn.calls) if call["id"]}
        places = [place for place, block in enumerate(turn.blocks) if block.is_result]
        if len(places) > 1 and order:
            results = sorted((turn.blocks[place] for place in places), key=lambda block: order.get(block.call_id, 0))
            for place, result in zip(places, results, strict=True):
                turn.blocks[place] = result


def _without_old_reasoning(turns: list[_Turn]) -> list[_Turn]:
    last = _last_question(turns)
    kept = [turn for index, turn in enumerate(turns) if index >= last or turn.role != "developer"]
    for turn in kept[: max(_last_question(kept), 0)]:
        turn.reasoning = ""
    return kept


def _last_question(turns: list[_Turn]) -> int:
    return max((index for index, turn in enumerate(turns) if turn.is_user_like), default=-1)


def _question(turn: _Turn) -> str:
    if turn.role == "latest_reminder":
        return REMINDER + turn.content
    if turn.role == "user":
        return USER + "\n\n".join(
            f"<tool_result>{block.text}</tool_result>" if block.is_result else block.text for block in turn.blocks
        )
    parts = [turn.content]
    if turn.tools:
        parts.append(_tools_text(turn.tools))
    if turn.response_format is not None:
        parts.append(_RESPONSE_FORMAT + _json(turn.response_format))
    return (USER if turn.role == "developer" else "") + "\n\n".join(parts)


def _answer(turn: _Turn, shows_reasoning: bool) -> str:
    reasoning = turn.reasoning + END_TAG if shows_reasoning else ""
    calls = render_calls((call["name"], call["arguments"]) for call in turn.calls) if turn.calls else ""
    return reasoning + turn.content + calls + ("" if turn.without_eos else EOS)


def _transition(turn: _Turn, thinking: bool, answers_openly: bool) -> str:
    if turn.task == "action":
        return ASSISTANT + (START_TAG if thinking else END_TAG) + f"<｜{turn.task}｜>"
    if turn.task is not None:
        return f"<｜{turn.task}｜>"
    if turn.is_user_like:
        return ASSISTANT + (START_TAG if answers_openly else END_TAG)
    return ""


def _tools_text(tools: list[Any]) -> str:
    functions = [tool.get("function", tool) if isinstance(tool, dict) else tool for tool in tools]
    return _TOOLS + "\n".join(map(_json, functions)) + _AFTER_TOOLS


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
