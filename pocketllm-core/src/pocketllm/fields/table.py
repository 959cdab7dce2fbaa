"""The rows of the field table: the policy of every request field, as data. :mod:`pocketllm.fields` acts on them."""

from __future__ import annotations

from typing import Any

import msgspec

from pocketllm.fields.policy import NEVER, needs_of

CHAT = "chat"
COMPLETIONS = "completions"
BOTH = (CHAT, COMPLETIONS)


class FieldRow(msgspec.Struct, frozen=True, kw_only=True):
    """Policy of one field.

    ``needs`` is the capability (a field of :class:`pocketllm.Capabilities`) without which a value outside ``neutral``
    is refused; empty: acted on by core or the server, whatever the engine.
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


def _needs(name: str, doc: str, endpoints: tuple[str, ...] = BOTH, **own: Any) -> FieldRow:
    """A field with a policy; ``own`` replaces a part of it."""
    need = needs_of(name)[0]
    policy = {"neutral": need.neutral, "instead": need.instead, "remedy": need.remedy, **own}
    return FieldRow(name=name, endpoints=endpoints, doc=doc, needs=need.capability, **policy)


def _refused(
    name: str, doc: str, instead: str, remedy: str, *, neutral: tuple[Any, ...] = (), endpoints: tuple[str, ...] = BOTH
) -> FieldRow:
    return FieldRow(
        name=name, endpoints=endpoints, doc=doc, needs=NEVER, neutral=neutral, instead=instead, remedy=remedy
    )


_OBSOLETE = "the older spelling of tool calls is not read"
_TEXT_ONLY = "this server produces text alone"
_GUIDED = "constraints have one spelling here"

FIELDS: tuple[FieldRow, ...] = (
    # What is asked.
    _acted_on("messages", "The conversation, rendered by the checkpoint's own chat template.", (CHAT,)),
    _acted_on("prompt", "Text, token ids, or a list of either; prefilled unchanged.", (COMPLETIONS,)),
    _needs("suffix", "Text that follows the completion; fill-in-the-middle tokens frame the prompt.", (COMPLETIONS,)),
    _acted_on("request_id", "The name under which DELETE /v1/requests/<id> finds the request."),
    # Limits.
    _acted_on("max_tokens", "The generation budget; absent: until an end token or the end of the context."),
    _acted_on("max_completion_tokens", "The newer name of max_tokens; wins when both are given."),
    _needs("min_tokens", "No end token before this many tokens."),
    _needs("ignore_eos", "Generate past end tokens."),
    _acted_on("stop", "A string or a list of strings, matched against the decoded answer."),
    _needs("stop_token_ids", "Further token ids that end the answer."),
    _acted_on("timeout", "Seconds until choices that are not complete are given up; none complete: 504."),
    # Sampling.
    _acted_on("temperature", "0 is greedy; where the engine fixes its sampling, only the value in force."),
    _acted_on("top_p", "Nucleus sampling; where the engine fixes its sampling, only the value in force."),
    _acted_on("top_k", "Sample among the k likeliest, 0 for all; where the engine fixes it, only the value in force."),
    _needs("min_p", "Drops tokens less likely than min_p times the likeliest."),
    _acted_on("seed", "Choice i uses seed + i; where the engine fixes its sampling, only the value in force."),
    _acted_on("n", "Number of choices, 1 to 128, interleaved in a stream; choice i of prompt p is p * n + i."),
    _needs("frequency_penalty", "Lowers tokens by how often they were generated, -2 to 2."),
    _needs("presence_penalty", "Lowers tokens that were generated at all, -2 to 2."),
    _needs("repetition_penalty", "Divides the logits of tokens already seen; 1 is off."),
    _needs("logit_bias", "Token id to a number added to its logit, -100 to 100."),
    _refused(
        "best_of", "Only 1: there is no second candidate to rank.",
        "one candidate is generated per choice, and there is no second one to compare it with",
        'Use "n" and rank the choices yourself', neutral=(1,), endpoints=(COMPLETIONS,),
    ),
    # Form of the answer.
    _needs("response_format", "text, json_object or json_schema."),
    _needs(
        "structured_outputs",
        "One of json (a schema), json_object, regex, choice (a list of strings) and grammar (Lark).",
    ),
    *(
        _refused(name, f'Refused: send it as structured_outputs["{key}"].', _GUIDED,
                 f'Send it as {{"structured_outputs": {{"{key}": …}}}}')
        for name, key in (
            ("guided_json", "json"), ("guided_regex", "regex"), ("guided_choice", "choice"),
            ("guided_grammar", "grammar"),
        )
    ),
    # Tools.
    _acted_on("tools", "Definitions for the chat template; strict ones need supports_structured_outputs.", (CHAT,)),
    _needs(
        "tool_choice",
        "auto; none keeps the tools out of the prompt; required, one function by name and allowed_tools hold the model "
        "to a call and also need supports_structured_outputs.",
        (CHAT,),
    ),
    _needs("parallel_tool_calls", "false: at most one tool call.", (CHAT,)),
    _acted_on("tool_call_streaming", "certain: calls leave when they are whole; eager: as they are written.", (CHAT,)),
    _refused(
        "functions", "Only empty: use tools.", _OBSOLETE, 'Send the definitions as "tools"', neutral=([],),
        endpoints=(CHAT,),
    ),
    _refused(
        "function_call", 'Only "auto" or "none": use tools.', _OBSOLETE, 'Use "tools"', neutral=("auto", "none"),
        endpoints=(CHAT,),
    ),
    # Template and reasoning.
    _acted_on("thinking_mode", 'Whether the template opens a reasoning block: "thinking" or "chat".', (CHAT,)),
    _acted_on("reasoning_effort", "How much to reason, in the template's own words.", (CHAT,)),
    _acted_on("reasoning", "The same as an object, as some clients send it.", (CHAT,)),
    _acted_on("reasoning_field", "both: reasoning is also sent as reasoning, beside reasoning_content.", (CHAT,)),
    _acted_on("drop_thinking", "Whether earlier reasoning is left out of the prompt.", (CHAT,)),
    _acted_on("add_generation_prompt", "Whether the template opens the assistant's turn.", (CHAT,)),
    _acted_on("continue_final_message", "The answer continues the last message, which is the assistant's.", (CHAT,)),
    _acted_on("chat_template_kwargs", "Further variables of the chat template.", (CHAT,)),
    # What comes back.
    _acted_on("stream", "Server-sent events that end in [DONE]."),
    _acted_on(
        "stream_options",
        "include_usage: a last chunk with the token counts; continuous_usage_stats: counts so far in every chunk. Both "
        "need supports_streamed_usage.",
    ),
    _needs("logprobs", "true: the log probability of each generated token.", (CHAT,)),
    _needs(  # a count, of which none is neutral
        "logprobs", "Number of alternatives to rank per position, 0 to 20.", (COMPLETIONS,),
        neutral=(), remedy='Remove "logprobs"',
    ),
    _acted_on("top_logprobs", "Number of alternatives to rank per position, 0 to 20; needs logprobs.", (CHAT,)),
    _refused(
        "top_logprobs", "Chat's spelling; completions name the count in logprobs itself.",
        "the completions endpoint names the count in logprobs itself", 'Send the count as "logprobs"',
        endpoints=(COMPLETIONS,),
    ),
    _needs(
        "echo",
        "The prompt in front of the answer, with its log probabilities where logprobs asks for them; max_tokens may "
        "then be 0.",
        (COMPLETIONS,),
    ),
    _acted_on("return_token_ids", "true: token_ids beside each choice, and prompt_token_ids once."),
    # Scheduling.
    _needs("priority", "Higher goes first among waiting requests."),
    _acted_on("cache_salt", "Cached prefixes are shared only with requests of the same salt."),
    # What nothing here can do.
    _refused(
        "modalities", 'Only ["text"].', _TEXT_ONLY, 'Send ["text"] or leave it out', neutral=(["text"],),
        endpoints=(CHAT,),
    ),
    _refused("audio", "Refused: the answer is text.", _TEXT_ONLY, 'Remove "audio"', endpoints=(CHAT,)),
    _refused(
        "web_search_options", "Refused: nothing is searched.", "the model sees the conversation alone",
        'Remove "web_search_options"', endpoints=(CHAT,),
    ),
    _refused(
        "verbosity", 'Only "medium": the length of the answer is the model\'s.', "no template has a place for it",
        "Ask for a short or a long answer in the prompt", neutral=("medium",), endpoints=(CHAT,),
    ),
    _refused(
        "moderation", "Refused: nothing is moderated.", "neither the prompt nor the answer is judged",
        'Remove "moderation"', endpoints=(CHAT,),
    ),
    # What cannot change the answer.
    _inert("model", "One model is served; its configured name is echoed back."),
    _inert("user", "The caller's own label."),
    _inert("store", "Nothing is stored."),
    _inert("metadata", "The caller's own labels."),
    _inert("service_tier", "There is one tier."),
    _inert("prediction", "A hint for speed; the answer does not depend on it.", (CHAT,)),
    _inert("prompt_cache_key", "Prefixes are shared by content.", (CHAT,)),
    _inert("prompt_cache_options", "Prefixes are shared by content.", (CHAT,)),
    _inert("prompt_cache_retention", "The cache keeps what fits.", (CHAT,)),
    _inert("safety_identifier", "The caller's own label.", (CHAT,)),
)  # fmt: skip
