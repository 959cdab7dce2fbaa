"""What a request asks beyond sampling: its place in the queue, a text behind the gap, a tool call."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from pocketllm.testing.case import case
from pocketllm.testing.refusals import refuses
from pocketllm.testing.rig import Rig, Sent
from pocketllm.testing.rules import broken
from pocketllm.types import TokenFlag

_TRIES = 3
_UNITS = ["c", "f"]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": _UNITS}},
            "required": ["unit"],
            "additionalProperties": False,
        },
    },
}


@case("F16")
def priority_goes_first_or_is_refused(rig: Rig) -> None:
    """Declared: with every place taken, the last to come and the most urgent is the first of the waiting to start."""
    if not rig.capabilities.supports_priority:
        refuses(rig, "F16", "priority", 1)
        return
    for _ in range(_TRIES):
        order = _starting_order(rig)
        if order is None:
            continue  # a place became free before all of them waited: the order of arrival was right
        if order[0] != 7:
            raise broken("F16", f"requests of priority 0, -1, 0 and 7 waited, and started in the order {order}")
        return


@case("F17")
def a_suffix_is_read_or_is_refused(rig: Rig) -> None:
    """Declared: prompts that differ only behind the gap get different log probabilities, or answers."""
    if not rig.capabilities.supports_suffix:
        refuses(rig, "F17", "suffix", "the end")
        return
    from pocketllm.text.fill_in_middle import find_gap_tokens

    gap = find_gap_tokens(rig.tokenizer, rig.checkpoint.metadata)
    prefix = list(rig.prompt(0, 4))
    has_logprobs = rig.capabilities.supports_logprobs
    wanted: dict[str, Any] = {"logprobs": True, "top_logprobs": 5} if has_logprobs else {}
    heard = []
    for index in range(1, 4):
        suffix = list(rig.prompt(index, 12))
        # Without tokens for it core hands no suffix over; the engine is then judged by the same texts unmarked.
        prompt = gap.frame(prefix, suffix) if gap is not None else [*prefix, *suffix, prefix[0]]
        sent = rig.run(rig.request(prompt, max_tokens=16, **wanted))
        first = sent.rows()[0].logprob
        heard.append((sent.tokens(), first.top if first is not None else None))
    if (rig.deterministic or has_logprobs) and all(each == heard[0] for each in heard):
        raise broken("F17", "three prompts that differ behind the gap alone are answered alike")


@case("F18")
def a_forced_call_is_a_call_or_is_refused(rig: Rig) -> None:
    """Declared, with structured outputs: the answer to a required call is one call that its schema accepts."""
    if not rig.capabilities.supports_tool_choice:
        refuses(rig, "F18", "tool_choice", "none")
    if not (rig.capabilities.supports_tool_choice and rig.capabilities.supports_structured_outputs):
        refuses(rig, "F18", "tool_choice", "required")
        return
    from pocketllm.structured import tool_call_constraint
    from pocketllm.text.tool_calls import HermesJson

    syntax = HermesJson()
    constraint = tool_call_constraint(syntax.name, [TOOL], mode="required", parallel=False)
    prompt = rig.prompt(6)
    # A model that has learnt nothing writes all the white space that JSON allows, which takes room.
    budget = rig.capabilities.max_model_len - len(prompt)
    sent = rig.run(rig.request(prompt, max_tokens=budget, constraint=constraint))
    ids = [row.token for row in sent.rows() if row.has_token and not row.flag & TokenFlag.STOP]
    text = rig.tokenizer.decode(ids)
    parsed = syntax.parse(text, [TOOL])
    made = [(call.name, json.loads(call.arguments)) for call in parsed.calls] if parsed is not None else []
    if sent.reason != "stop" or made not in [[("look", {"unit": unit})] for unit in _UNITS]:
        raise broken("F18", f'a required call of "look" gave {text!r} and ended in "{sent.reason}"')


def _starting_order(rig: Rig) -> list[int] | None:
    """Priorities of four waiting requests in the order of their first rows; None when they did not all wait."""
    running = [rig.send(rig.long_request(index)) for index in range(rig.capabilities.max_batch_size)]
    for sent in running:
        sent.wait_rows(1)
    waiting = [
        (priority, rig.send(_with_priority(rig, index, priority))) for index, priority in enumerate((0, -1, 0, 7))
    ]
    rig.recorder.drain_now()
    all_waited = not any(sent.ended for sent in running)
    # One place alone becomes free, so that the order in which the four take it is the order of their rows.
    rig.cancel(running[0].handle)
    running[0].wait()
    for _, sent in waiting:
        sent.wait()
    for sent in running[1:]:
        rig.cancel(sent.handle)
        sent.wait()
    ranked = sorted(waiting, key=lambda entry: _first_batch(rig, entry[1]))
    return [priority for priority, _ in ranked] if all_waited else None


def _with_priority(rig: Rig, index: int, priority: int) -> Any:
    return msgspec.structs.replace(rig.request(rig.prompt(index + 20), max_tokens=2), priority=priority)


def _first_batch(rig: Rig, sent: Sent) -> int:
    """The number of the batch with the first row of a sequence."""
    return next(number for number, batch in enumerate(rig.recorder.batches()) if sent.handle in batch.handles)
