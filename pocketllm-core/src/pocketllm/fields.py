"""The field table: what a server does with each field of an OpenAI-shaped request, and when it refuses one.

Types and bounds belong to the wire Structs of whoever speaks the protocol; this table holds the policy. A field is
accepted only when somebody acts on it. A value that names what would happen anyway is neutral and always accepted; any
other value of a field that needs a feature nobody declares is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm.types import Capabilities

CHAT = "chat"
COMPLETIONS = "completions"
BOTH = (CHAT, COMPLETIONS)

NEVER = "nothing declares this"
"""A ``needs`` that no engine and no server declares yet: every value that is not neutral is refused."""

MAX_SHOWN_CHARS = 80


class FieldRow(msgspec.Struct, frozen=True, kw_only=True):
    """Policy of one field.

    ``needs`` is the capability (a field of :class:`Capabilities`) without which a value outside ``neutral`` is refused;
    empty: acted on by core or the server, whatever the engine.
    ``instead`` says what happens without it, ``remedy`` what to send. ``inert`` fields cannot change the output.
    """

    name: str
    endpoints: tuple[str, ...]
    doc: str
    needs: str = ""
    neutral: tuple[Any, ...] = ()
    instead: str = ""
    remedy: str = ""
    inert: bool = False


def _acted_on(name: str, doc: str, endpoints: tuple[str, ...] = BOTH) -> FieldRow:
    return FieldRow(name=name, endpoints=endpoints, doc=doc)


def _inert(name: str, doc: str, endpoints: tuple[str, ...] = BOTH) -> FieldRow:
    return FieldRow(name=name, endpoints=endpoints, doc=doc, inert=True)


_PENALTY = "the sampler has no such term, so the request would be generated as if the penalty were absent"
_OBSOLETE = "the older spelling of tool calls is not read"
_TEXT_ONLY = "this server produces text alone"

FIELDS: tuple[FieldRow, ...] = (
    _acted_on("messages", "The conversation, rendered by the checkpoint's own chat template.", (CHAT,)),
    _acted_on("prompt", "Text, token ids, or a list of either; prefilled unchanged.", (COMPLETIONS,)),
    _acted_on("stream", "Server-sent events that end in [DONE]."),
    _acted_on("max_tokens", "The generation budget; absent: until an end token or the end of the context."),
    _acted_on("max_completion_tokens", "The newer name of max_tokens; wins when both are given."),
    _acted_on("temperature", "0 is greedy; where the engine fixes its sampling, only the value in force."),
    _acted_on("top_p", "Nucleus sampling; where the engine fixes its sampling, only the value in force."),
    _acted_on("top_k", "Sample among the k likeliest; where the engine fixes it, only the value in force."),
    _acted_on("seed", "Choice i uses seed + i; where the engine fixes its sampling, only the value in force."),
    _acted_on("stop", "A string or a list of strings, matched against the decoded answer."),
    _acted_on("n", "Number of choices, 1 to 128, interleaved in a stream."),
    _acted_on("request_id", "The name under which DELETE /v1/requests/<id> finds the request."),
    _acted_on("tools", "Tool definitions for the chat template.", (CHAT,)),
    _acted_on("thinking_mode", 'Whether the template opens a reasoning block: "thinking" or "chat".', (CHAT,)),
    _acted_on("reasoning_effort", "How much to reason, in the template's own words.", (CHAT,)),
    _acted_on("reasoning", "The same as an object, as some clients send it.", (CHAT,)),
    _acted_on("add_generation_prompt", "Whether the template opens the assistant's turn.", (CHAT,)),
    _acted_on("drop_thinking", "Whether earlier reasoning is left out of the prompt.", (CHAT,)),
    _acted_on("chat_template_kwargs", "Further variables of the chat template.", (CHAT,)),
    FieldRow(
        name="logprobs",
        endpoints=(CHAT,),
        doc="true: the log probability of each generated token.",
        needs="supports_logprobs",
        neutral=(False,),
        instead="the engine ranks no tokens",
        remedy='Send "logprobs" as false',
    ),
    FieldRow(
        name="logprobs",
        endpoints=(COMPLETIONS,),
        doc="Number of alternatives to rank per position, 0 to 20.",
        needs="supports_logprobs",
        instead="the engine ranks no tokens",
        remedy='Remove "logprobs"',
    ),
    _acted_on("top_logprobs", "Number of alternatives to rank per position, 0 to 20; needs logprobs.", (CHAT,)),
    FieldRow(
        name="top_logprobs",
        endpoints=(COMPLETIONS,),
        doc="Chat's spelling; completions name the count in logprobs itself.",
        needs=NEVER,
        instead="the completions endpoint names the count in logprobs itself",
        remedy='Send the count as "logprobs"',
    ),
    FieldRow(
        name="response_format",
        endpoints=(CHAT,),
        doc="text, json_object or json_schema.",
        needs="supports_structured_outputs",
        neutral=({"type": "text"},),
        instead="the engine cannot constrain its output",
        remedy='Send {"type": "text"} and ask for the format in the prompt',
    ),
    FieldRow(
        name="frequency_penalty",
        endpoints=BOTH,
        doc="Lowers tokens by how often they were generated, -2 to 2.",
        needs="supports_penalties",
        neutral=(0,),
        instead=_PENALTY,
        remedy='Send "frequency_penalty" as 0',
    ),
    FieldRow(
        name="presence_penalty",
        endpoints=BOTH,
        doc="Lowers tokens that were generated at all, -2 to 2.",
        needs="supports_penalties",
        neutral=(0,),
        instead=_PENALTY,
        remedy='Send "presence_penalty" as 0',
    ),
    FieldRow(
        name="repetition_penalty",
        endpoints=BOTH,
        doc="Divides the logits of tokens already seen; 1 is off.",
        needs="supports_penalties",
        neutral=(1,),
        instead=_PENALTY,
        remedy='Send "repetition_penalty" as 1',
    ),
    FieldRow(
        name="logit_bias",
        endpoints=BOTH,
        doc="Token id to a number added to its logit, -100 to 100.",
        needs="supports_logit_bias",
        neutral=({},),
        instead="no per-token bias is applied, so biased tokens would be sampled at their unmodified probability",
        remedy='Remove "logit_bias" or send an empty object',
    ),
    FieldRow(
        name="min_p",
        endpoints=BOTH,
        doc="Drops tokens less likely than min_p times the likeliest.",
        needs="supports_min_p",
        neutral=(0,),
        instead="the sampler has no min-p cut",
        remedy='Send "min_p" as 0',
    ),
    FieldRow(
        name="min_tokens",
        endpoints=BOTH,
        doc="No end token before this many tokens.",
        needs="supports_min_tokens",
        neutral=(0,),
        instead="an end token ends the answer whenever it comes",
        remedy='Send "min_tokens" as 0',
    ),
    FieldRow(
        name="ignore_eos",
        endpoints=BOTH,
        doc="Generate past end tokens.",
        needs="supports_ignore_eos",
        neutral=(False,),
        instead="an end token always ends the answer",
        remedy='Send "ignore_eos" as false',
    ),
    FieldRow(
        name="stop_token_ids",
        endpoints=BOTH,
        doc="Further token ids that end the answer.",
        needs="supports_stop_token_ids",
        neutral=([],),
        instead="only the checkpoint's own end tokens are watched for",
        remedy='Use "stop" with the text instead',
    ),
    FieldRow(
        name="best_of",
        endpoints=(COMPLETIONS,),
        doc="Only 1: there is no second candidate to rank.",
        needs=NEVER,
        neutral=(1,),
        instead="one candidate is generated per choice, and there is no second one to compare it with",
        remedy='Use "n" and rank the choices yourself',
    ),
    FieldRow(
        name="suffix",
        endpoints=(COMPLETIONS,),
        doc="Only empty: nothing is written after the completion.",
        needs=NEVER,
        neutral=("",),
        instead="the completion is returned on its own, with no suffix after it",
        remedy='Remove "suffix"',
    ),
    FieldRow(
        name="echo",
        endpoints=(COMPLETIONS,),
        doc="Only false: the answer holds the continuation alone.",
        needs=NEVER,
        neutral=(False,),
        instead="the answer holds the generated continuation alone, never the prompt",
        remedy='Send "echo" as false and put the prompt in front yourself',
    ),
    FieldRow(
        name="tool_choice",
        endpoints=(CHAT,),
        doc='Only "auto": the model decides whether to call a tool.',
        needs=NEVER,
        neutral=("auto",),
        instead="tool definitions reach the chat template, but the model is not held to a choice among them",
        remedy='Send "tool_choice" as "auto"',
    ),
    FieldRow(
        name="parallel_tool_calls",
        endpoints=(CHAT,),
        doc="Only true: the number of calls is the model's.",
        needs=NEVER,
        neutral=(True,),
        instead="the number of tool calls that the model writes is not limited",
        remedy='Send "parallel_tool_calls" as true',
    ),
    _acted_on("stream_options", "include_usage: a last chunk with the token counts, where the engine declares it."),
    FieldRow(
        name="continue_final_message",
        endpoints=(CHAT,),
        doc="Only false: a trailing assistant message is history.",
        needs=NEVER,
        neutral=(False,),
        instead="the last message is closed like any other",
        remedy="Send the rendered text to /v1/completions",
    ),
    FieldRow(
        name="functions",
        endpoints=(CHAT,),
        doc="Only empty: use tools.",
        needs=NEVER,
        neutral=([],),
        instead=_OBSOLETE,
        remedy='Send the definitions as "tools"',
    ),
    FieldRow(
        name="function_call",
        endpoints=(CHAT,),
        doc='Only "auto" or "none": use tools.',
        needs=NEVER,
        neutral=("auto", "none"),
        instead=_OBSOLETE,
        remedy='Use "tools"',
    ),
    FieldRow(
        name="modalities",
        endpoints=(CHAT,),
        doc='Only ["text"].',
        needs=NEVER,
        neutral=(["text"],),
        instead=_TEXT_ONLY,
        remedy='Send ["text"] or leave it out',
    ),
    FieldRow(
        name="audio",
        endpoints=(CHAT,),
        doc="Refused: the answer is text.",
        needs=NEVER,
        instead=_TEXT_ONLY,
        remedy='Remove "audio"',
    ),
    FieldRow(
        name="web_search_options",
        endpoints=(CHAT,),
        doc="Refused: nothing is searched.",
        needs=NEVER,
        instead="the model sees the conversation alone",
        remedy='Remove "web_search_options"',
    ),
    FieldRow(
        name="verbosity",
        endpoints=(CHAT,),
        doc='Only "medium": the length of the answer is the model\'s.',
        needs=NEVER,
        neutral=("medium",),
        instead="no template has a place for it",
        remedy="Ask for a short or a long answer in the prompt",
    ),
    FieldRow(
        name="moderation",
        endpoints=(CHAT,),
        doc="Refused: nothing is moderated.",
        needs=NEVER,
        instead="neither the prompt nor the answer is judged",
        remedy='Remove "moderation"',
    ),
    _inert("model", "One model is served; its configured name is echoed back."),
    _inert("user", "The caller's own label."),
    _inert("store", "Nothing is stored.", (CHAT,)),
    _inert("metadata", "The caller's own labels.", (CHAT,)),
    _inert("service_tier", "There is one tier.", (CHAT,)),
    _inert("prediction", "A hint for speed; the answer does not depend on it.", (CHAT,)),
    _inert("prompt_cache_key", "Prefixes are shared by content.", (CHAT,)),
    _inert("prompt_cache_options", "Prefixes are shared by content.", (CHAT,)),
    _inert("prompt_cache_retention", "The cache keeps what fits.", (CHAT,)),
    _inert("safety_identifier", "The caller's own label.", (CHAT,)),
)

_BY_ENDPOINT: dict[str, dict[str, FieldRow]] = {
    endpoint: {row.name: row for row in FIELDS if endpoint in row.endpoints} for endpoint in BOTH
}


def rows(endpoint: str) -> Mapping[str, FieldRow]:
    """The table of one endpoint, :data:`CHAT` or :data:`COMPLETIONS`, by field name."""
    return _BY_ENDPOINT[endpoint]


def check_fields(body: Mapping[str, Any], endpoint: str, capabilities: Capabilities) -> None:
    """Refuse the first field of a decoded request whose value would change the output and is not acted upon.

    ``body`` holds the fields that were set (null is absent), with their types checked. Fields without a row pass.

    Raises:
        UnsupportedFeatureError: ``param`` names the field.
        ConfigurationError: the value is not what this endpoint means by the field.
    """
    table = _BY_ENDPOINT[endpoint]
    for name, value in body.items():
        row = table.get(name)
        if row is None or not row.needs or capabilities.supports(row.needs):
            continue
        # 0 == False in Python, but false is no neutral penalty: the wire types have refused it by now.
        if not any(value == neutral for neutral in row.neutral):
            raise unsupported(name, value, row.instead, row.remedy)
    _check_logprobs(body, endpoint, capabilities)
    options = body.get("stream_options")
    wants_usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
    if wants_usage and body.get("stream") and not capabilities.supports_streamed_usage:
        raise unsupported(
            "stream_options.include_usage",
            True,
            "a stream is delta chunks followed by [DONE], and none of them carries usage",
            "Leave it out, or ask for a response that is not streamed, which reports usage already",
        )
    _check_token_ids(body, capabilities.vocab_size)


def _check_logprobs(body: Mapping[str, Any], endpoint: str, capabilities: Capabilities) -> None:
    value = body.get("logprobs")
    wanted = value is True if endpoint == CHAT else value is not None
    if wanted and body.get("stream") and not capabilities.supports_streamed_logprobs:
        raise unsupported(
            "logprobs",
            value,
            "a streamed chunk carries the text of its token with no ranking beside it",
            'Send "stream" as false',
        )
    if endpoint == CHAT and body.get("top_logprobs") and not wanted:
        raise unsupported(
            "top_logprobs",
            body["top_logprobs"],
            "there is no ranking to take alternatives from unless the request asks for log probabilities",
            'Send "logprobs" as true',
        )


def _check_token_ids(body: Mapping[str, Any], vocab_size: int) -> None:
    if vocab_size <= 0:
        return
    named: tuple[tuple[str, Iterable[Any]], ...] = (
        ("prompt", _prompt_ids(body.get("prompt"))),
        ("stop_token_ids", body.get("stop_token_ids") or ()),
        ("logit_bias", body.get("logit_bias") or ()),
    )
    for name, ids in named:
        for item in ids:
            token = int(item) if isinstance(item, str) and item.isdecimal() and len(item) < 20 else item
            if isinstance(token, int) and not 0 <= token < vocab_size:
                raise ConfigurationError(
                    f'"{name}" holds the token id {token}, but this model\'s ids are 0 to {vocab_size - 1}. '
                    "Send ids of this model's own tokenizer.",
                    param=name,
                )


def _prompt_ids(prompt: Any) -> Iterable[Any]:
    if not isinstance(prompt, list):
        return
    for item in prompt:
        if isinstance(item, list):
            yield from item
        elif isinstance(item, int):
            yield item


def supported_fields(endpoint: str, capabilities: Capabilities) -> list[str]:
    """Names of the fields that are acted on, in the table's order."""
    return [
        row.name
        for row in _BY_ENDPOINT[endpoint].values()
        if not row.inert and (not row.needs or capabilities.supports(row.needs))
    ]


def shown(value: Any) -> str:
    """``value`` as JSON for an error message, cut to a readable length."""
    # Cut before encoding, too: a caller's string may be megabytes long.
    text = json.dumps(value[:MAX_SHOWN_CHARS] if isinstance(value, str) else value, ensure_ascii=False, default=repr)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"


def unsupported(name: str, value: Any, instead: str, remedy: str) -> UnsupportedFeatureError:
    """The refusal of one value, in the one wording that all refusals have."""
    return UnsupportedFeatureError(
        f'"{name}" = {shown(value)} is not supported by this server: {instead}. {remedy}.', param=name
    )
