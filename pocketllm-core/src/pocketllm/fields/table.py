"""The rows of the field table: the policy of every request field, as data. :mod:`pocketllm.fields` acts on them."""

from __future__ import annotations

from typing import Any

import msgspec

CHAT = "chat"
COMPLETIONS = "completions"
BOTH = (CHAT, COMPLETIONS)

NEVER = "nothing declares this"
"""A ``needs`` that no engine and no server declares: every value that is not neutral is refused."""


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


def _needs(
    needs: str, name: str, doc: str, neutral: tuple[Any, ...], instead: str, remedy: str, endpoints: tuple[str, ...]
) -> FieldRow:
    return FieldRow(
        name=name, endpoints=endpoints, doc=doc, needs=needs, neutral=neutral, instead=instead, remedy=remedy
    )


def _refused(
    name: str, doc: str, instead: str, remedy: str, *, neutral: tuple[Any, ...] = (), endpoints: tuple[str, ...] = BOTH
) -> FieldRow:
    return _needs(NEVER, name, doc, neutral, instead, remedy, endpoints)


_PENALTY = "the sampler has no such term, so the request would be generated as if the penalty were absent"
_OBSOLETE = "the older spelling of tool calls is not read"
_TEXT_ONLY = "this server produces text alone"
_UNRANKED = "the engine ranks no tokens"
_UNCONSTRAINED = "the engine cannot constrain its output"
_GUIDED = "constraints have one spelling here"

FIELDS: tuple[FieldRow, ...] = (
    # What is asked.
    _acted_on("messages", "The conversation, rendered by the checkpoint's own chat template.", (CHAT,)),
    _acted_on("prompt", "Text, token ids, or a list of either; prefilled unchanged.", (COMPLETIONS,)),
    _needs(
        "supports_suffix", "suffix", "Text that follows the completion; fill-in-the-middle tokens frame the prompt.",
        ("",), "the completion is returned on its own, with no suffix after it", 'Remove "suffix"', (COMPLETIONS,),
    ),
    _acted_on("request_id", "The name under which DELETE /v1/requests/<id> finds the request."),
    # Limits.
    _acted_on("max_tokens", "The generation budget; absent: until an end token or the end of the context."),
    _acted_on("max_completion_tokens", "The newer name of max_tokens; wins when both are given."),
    _needs(
        "supports_min_tokens", "min_tokens", "No end token before this many tokens.", (0,),
        "an end token ends the answer whenever it comes", 'Send "min_tokens" as 0', BOTH,
    ),
    _needs(
        "supports_ignore_eos", "ignore_eos", "Generate past end tokens.", (False,),
        "an end token always ends the answer", 'Send "ignore_eos" as false', BOTH,
    ),
    _acted_on("stop", "A string or a list of strings, matched against the decoded answer."),
    _needs(
        "supports_stop_token_ids", "stop_token_ids", "Further token ids that end the answer.", ([],),
        "only the checkpoint's own end tokens are watched for", 'Use "stop" with the text instead', BOTH,
    ),
    _acted_on("timeout", "Seconds until choices that are not complete are given up; none complete: 504."),
    # Sampling.
    _acted_on("temperature", "0 is greedy; where the engine fixes its sampling, only the value in force."),
    _acted_on("top_p", "Nucleus sampling; where the engine fixes its sampling, only the value in force."),
    _acted_on("top_k", "Sample among the k likeliest, 0 for all; where the engine fixes it, only the value in force."),
    _needs(
        "supports_min_p", "min_p", "Drops tokens less likely than min_p times the likeliest.", (0,),
        "the sampler has no min-p cut", 'Send "min_p" as 0', BOTH,
    ),
    _acted_on("seed", "Choice i uses seed + i; where the engine fixes its sampling, only the value in force."),
    _acted_on("n", "Number of choices, 1 to 128, interleaved in a stream; choice i of prompt p is p * n + i."),
    _needs(
        "supports_penalties", "frequency_penalty", "Lowers tokens by how often they were generated, -2 to 2.", (0,),
        _PENALTY, 'Send "frequency_penalty" as 0', BOTH,
    ),
    _needs(
        "supports_penalties", "presence_penalty", "Lowers tokens that were generated at all, -2 to 2.", (0,),
        _PENALTY, 'Send "presence_penalty" as 0', BOTH,
    ),
    _needs(
        "supports_penalties", "repetition_penalty", "Divides the logits of tokens already seen; 1 is off.", (1,),
        _PENALTY, 'Send "repetition_penalty" as 1', BOTH,
    ),
    _needs(
        "supports_logit_bias", "logit_bias", "Token id to a number added to its logit, -100 to 100.", ({},),
        "no per-token bias is applied, so biased tokens would be sampled at their unmodified probability",
        'Remove "logit_bias" or send an empty object', BOTH,
    ),
    _refused(
        "best_of", "Only 1: there is no second candidate to rank.",
        "one candidate is generated per choice, and there is no second one to compare it with",
        'Use "n" and rank the choices yourself', neutral=(1,), endpoints=(COMPLETIONS,),
    ),
    # Form of the answer.
    _needs(
        "supports_structured_outputs", "response_format", "text, json_object or json_schema.", ({"type": "text"},),
        _UNCONSTRAINED, 'Send {"type": "text"} and ask for the format in the prompt', BOTH,
    ),
    _needs(
        "supports_structured_outputs", "structured_outputs",
        "One of json (a schema), json_object, regex, choice (a list of strings) and grammar (Lark).", ({},),
        _UNCONSTRAINED, 'Remove "structured_outputs" and ask for the form in the prompt', BOTH,
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
        "supports_tool_choice", "tool_choice",
        "auto; none keeps the tools out of the prompt; required, one function by name and allowed_tools hold the model "
        "to a call and also need supports_structured_outputs.",
        ("auto",), "tool definitions reach the chat template, but the model is not held to a choice among them",
        'Send "tool_choice" as "auto"', (CHAT,),
    ),
    _needs(
        "supports_structured_outputs", "parallel_tool_calls", "false: at most one tool call.", (True,),
        "the number of tool calls that the model writes is not limited", 'Send "parallel_tool_calls" as true', (CHAT,),
    ),
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
    _needs(
        "supports_logprobs", "logprobs", "true: the log probability of each generated token.", (False,), _UNRANKED,
        'Send "logprobs" as false', (CHAT,),
    ),
    _needs(
        "supports_logprobs", "logprobs", "Number of alternatives to rank per position, 0 to 20.", (), _UNRANKED,
        'Remove "logprobs"', (COMPLETIONS,),
    ),
    _acted_on("top_logprobs", "Number of alternatives to rank per position, 0 to 20; needs logprobs.", (CHAT,)),
    _refused(
        "top_logprobs", "Chat's spelling; completions name the count in logprobs itself.",
        "the completions endpoint names the count in logprobs itself", 'Send the count as "logprobs"',
        endpoints=(COMPLETIONS,),
    ),
    _needs(
        "supports_prompt_logprobs", "echo",
        "The prompt in front of the answer, with its log probabilities where logprobs asks for them; max_tokens may "
        "then be 0.",
        (False,), "the answer holds the generated continuation alone, never the prompt",
        'Send "echo" as false and put the prompt in front yourself', (COMPLETIONS,),
    ),
    _acted_on("return_token_ids", "true: token_ids beside each choice, and prompt_token_ids once."),
    # Scheduling.
    _needs(
        "supports_priority", "priority", "Higher goes first among waiting requests.", (0,),
        "the engine takes requests in the order of their arrival", 'Send "priority" as 0', BOTH,
    ),
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
