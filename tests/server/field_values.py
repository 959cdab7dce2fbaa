"""Values of every request field: what each needs of the engine, and values that are wrong on any engine."""

from __future__ import annotations

from typing import Any

import msgspec

from pocketllm.fields import CHAT, COMPLETIONS
from pocketllm.types import Capabilities

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STRICT_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "strict": True}}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
SCHEMA: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
USER: dict[str, Any] = {"role": "user", "content": "Hi"}
AGAIN: list[dict[str, Any]] = [USER, {"role": "assistant", "content": "Well"}]
CALLED: list[dict[str, Any]] = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": {"degrees": 21}},
]

STRUCTURED, LOGPROBS, PENALTIES = "supports_structured_outputs", "supports_logprobs", "supports_penalties"
CHOICE, USAGE, STREAMED = "supports_tool_choice", "supports_streamed_usage", "supports_streamed_logprobs"
PER_REQUEST, TOP_K, ECHO = "per_request_sampling", "per_request_top_k", "supports_prompt_logprobs"


class Value(msgspec.Struct, frozen=True):
    """``body`` is accepted where every one of ``needs`` is declared, else refused with ``param``."""

    endpoint: str
    body: dict[str, Any]
    needs: tuple[str, ...] = ()
    param: str = ""

    def accepted_by(self, capabilities: Capabilities) -> bool:
        return all(capabilities.supports(need) for need in self.needs)

    @property
    def named(self) -> str:
        return self.param or next(iter(self.body))


def _chat(body: dict[str, Any], *needs: str, param: str = "") -> Value:
    return Value(CHAT, body, needs, param)


def _completion(body: dict[str, Any], *needs: str, param: str = "") -> Value:
    return Value(COMPLETIONS, body, needs, param)


def _both(body: dict[str, Any], *needs: str, param: str = "") -> list[Value]:
    return [Value(endpoint, body, needs, param) for endpoint in (CHAT, COMPLETIONS)]


NEVER = "nothing declares this"

VALUES: list[Value] = [
    # Shared fields, with a neutral value and one that needs something.
    *_both({"model": "another"}), *_both({"user": "me"}), *_both({"store": True}), *_both({"metadata": {"a": "b"}}),
    *_both({"service_tier": "flex"}), *_both({"stream": True}), *_both({"stream": False}),
    *_both({"max_tokens": 2}), *_both({"max_completion_tokens": 2}), *_both({"timeout": 60}),
    *_both({"stop": "x"}), *_both({"stop": ["x", "y"]}), *_both({"stop": ["", ""]}), *_both({"stop": []}),
    *_both({"n": 1}), *_both({"n": 3}), *_both({"n": 128}),
    *_both({"n": 2, "temperature": 1}, PER_REQUEST, param="temperature"),
    *_both({"temperature": 0}), *_both({"temperature": 0.5}, PER_REQUEST), *_both({"top_p": 1}),
    *_both({"top_p": 0.5}, PER_REQUEST), *_both({"seed": 0}), *_both({"seed": 7}, PER_REQUEST),
    *_both({"seed": -5}, PER_REQUEST), *_both({"top_k": 0}), *_both({"top_k": -1}), *_both({"top_k": 5}, TOP_K),
    *_both({"min_p": 0}), *_both({"min_p": 0.2}, "supports_min_p"),
    *_both({"frequency_penalty": 0}), *_both({"frequency_penalty": -2}, PENALTIES),
    *_both({"presence_penalty": 0}), *_both({"presence_penalty": 2}, PENALTIES),
    *_both({"repetition_penalty": 1}), *_both({"repetition_penalty": 1.5}, PENALTIES),
    *_both({"logit_bias": {}}), *_both({"logit_bias": {"5": -100, "6": 1.5}}, "supports_logit_bias"),
    *_both({"min_tokens": 0}), *_both({"min_tokens": 1}, "supports_min_tokens"),
    *_both({"ignore_eos": False}), *_both({"ignore_eos": True}, "supports_ignore_eos"),
    *_both({"stop_token_ids": []}), *_both({"stop_token_ids": [3]}, "supports_stop_token_ids"),
    *_both({"request_id": "visible-ascii/1"}), *_both({"return_token_ids": True}),
    *_both({"return_token_ids": True, "stream": True}),
    *_both({"priority": 0}), *_both({"priority": 3}, "supports_priority"), *_both({"cache_salt": "tenant"}),
    *_both({"response_format": {"type": "text"}}), *_both({"response_format": {"type": "json_object"}}, STRUCTURED),
    *_both({"response_format": SCHEMA}, STRUCTURED),
    *_both({"structured_outputs": {}}), *_both({"structured_outputs": {"regex": "a+"}}, STRUCTURED),
    *_both({"structured_outputs": {"choice": ["a", "b"]}}, STRUCTURED),
    *_both({"structured_outputs": {"json": {"type": "object"}}}, STRUCTURED),
    *_both({"structured_outputs": {"json_object": True}}, STRUCTURED),
    *_both({"structured_outputs": {"grammar": 'start: "a"'}}, STRUCTURED),
    *(each for name in ("json", "regex", "choice", "grammar") for each in _both({f"guided_{name}": "a"}, NEVER)),
    *_both({"stream_options": {"include_usage": True}}),
    *_both({"stream_options": {"include_obfuscation": True}, "stream": True}),
    *_both({"stream_options": {"include_usage": False}, "stream": True}),
    *_both({"stream_options": {"include_usage": True}, "stream": True}, USAGE, param="stream_options.include_usage"),
    *_both(
        {"stream_options": {"continuous_usage_stats": True}, "stream": True},
        USAGE,
        param="stream_options.continuous_usage_stats",
    ),
    # Chat.
    _chat({"messages": [USER]}), _chat({"messages": CALLED, "tools": [TOOL]}),
    _chat({"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}, {**USER, "name": "ann"}]}),
    _chat({"messages": [USER, {"role": "assistant", "content": "a", "reasoning": "hm"}, USER]}),
    _chat({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, NEVER),
    _chat({"logprobs": False}), _chat({"logprobs": True}, LOGPROBS),
    _chat({"logprobs": True, "stream": True}, LOGPROBS, STREAMED),
    _chat({"top_logprobs": 0}), _chat({"logprobs": True, "top_logprobs": 20}, LOGPROBS), _chat({"tools": []}),
    _chat({"tools": [TOOL]}), _chat({"tools": [STRICT_TOOL]}, STRUCTURED),
    _chat({"tool_choice": "auto"}), _chat({"tool_choice": "none", "tools": [TOOL]}, CHOICE),
    _chat({"tool_choice": "required", "tools": [TOOL]}, CHOICE, STRUCTURED),
    _chat({"tool_choice": NAMED, "tools": [TOOL]}, CHOICE, STRUCTURED),
    _chat(
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}, "tools": [TOOL]},
        CHOICE, STRUCTURED,
    ),
    _chat({"parallel_tool_calls": True}), _chat({"parallel_tool_calls": False, "tools": [TOOL]}, STRUCTURED),
    _chat({"tool_call_streaming": "certain"}), _chat({"tool_call_streaming": "eager", "stream": True}),
    _chat({"thinking_mode": "thinking"}), _chat({"thinking_mode": "chat"}), _chat({"reasoning_effort": "max"}),
    _chat({"reasoning": {"effort": "low"}}), _chat({"reasoning_field": "both"}),
    _chat({"reasoning_field": "reasoning_content"}), _chat({"drop_thinking": True}),
    _chat({"add_generation_prompt": False}), _chat({"chat_template_kwargs": {"a": 1}}),
    _chat({"continue_final_message": False}), _chat({"continue_final_message": True, "messages": AGAIN}),
    _chat({"functions": []}), _chat({"functions": [{"name": "f"}]}, NEVER), _chat({"function_call": "none"}),
    _chat({"function_call": {"name": "f"}}, NEVER), _chat({"modalities": ["text"]}),
    _chat({"modalities": ["text", "audio"]}, NEVER), _chat({"audio": {"voice": "x"}}, NEVER),
    _chat({"web_search_options": {}}, NEVER), _chat({"verbosity": "medium"}), _chat({"verbosity": "low"}, NEVER),
    _chat({"moderation": True}, NEVER), _chat({"prediction": {"type": "content", "content": "x"}}),
    _chat({"prompt_cache_key": "k"}), _chat({"prompt_cache_options": {}}), _chat({"prompt_cache_retention": "24h"}),
    _chat({"safety_identifier": "s"}),
    # Completions.
    _completion({"prompt": "Once"}), _completion({"prompt": [5, 6]}), _completion({"prompt": ["a", "b"], "n": 2}),
    _completion({"prompt": [[5], [6, 7]]}), _completion({"logprobs": 0}, LOGPROBS),
    _completion({"logprobs": 20}, LOGPROBS), _completion({"logprobs": 1, "stream": True}, LOGPROBS, STREAMED),
    _completion({"top_logprobs": 1}, NEVER), _completion({"best_of": 1}), _completion({"best_of": 2}, NEVER),
    _completion({"suffix": ""}), _completion({"suffix": "end"}, "supports_suffix"), _completion({"echo": False}),
    _completion({"echo": True}, ECHO), _completion({"echo": True, "max_tokens": 0}, ECHO),
    _completion({"echo": True, "logprobs": 1, "max_tokens": 0}, LOGPROBS, ECHO),
]  # fmt: skip
"""The first key of a body is the field it is about."""


def _numbers(name: str, *wrong: Any) -> list[Value]:
    return [each for value in wrong for each in _both({name: value})]


WRONG: list[Value] = [
    *_numbers("n", 0, -1, 129, 1.5, "2", True, [1], {}), *_numbers("temperature", -0.1, "hot", True, 101),
    *_numbers("top_p", 0, 1.1, -1, True, "x"), *_numbers("top_k", -2, 1.5, True, "x"),
    *_numbers("min_p", -0.1, 1.1, True), *_numbers("seed", 0.5, True, "x", 2**63), *_numbers("max_tokens", -1, 1.5),
    *_numbers("max_completion_tokens", -1, "5", False), *_numbers("min_tokens", -1, True, 0.5),
    *_numbers("frequency_penalty", 2.1, -2.1, True, "x"), *_numbers("presence_penalty", 3, "x", False),
    *_numbers("repetition_penalty", 0, -1, 101, True), *_numbers("priority", 2**31, 0.5, True, "high"),
    *_numbers("timeout", 0, -1, True, "1", 10**9), *_numbers("cache_salt", "", 5, "s" * 2000),
    *_numbers("logit_bias", [], {"a": 1}, {"5": 101}, {"5": True}, {"99999999": 1}, {"-1": 1}),
    *_numbers("stop", 5, ["a", 1], {}, True), *_numbers("stop_token_ids", 5, [-1], [True], ["a"], [10**9]),
    *_numbers("ignore_eos", 1, "true"), *_numbers("stream", 1, "yes"), *_numbers("return_token_ids", 1, "yes"),
    *_numbers("request_id", "", "a b", "a#1", "é", 7, "x" * 300), *_numbers("stream_options", True, [], "usage"),
    *_numbers("response_format", "json", {}, {"type": "yaml"}),
    *_numbers("structured_outputs", "a", [], {"xml": 1}, {"choice": "a"}, {"regex": 5}, {"json": 5}),
    *(_chat({"max_tokens": value}) for value in (0,)),
    *(_completion({"max_tokens": value}) for value in (0,)),
    *(_chat({"logprobs": value}) for value in (0, 2, "true")),
    *(_completion({"logprobs": value}) for value in (True, False, 21, -1, 1.5)),
    *(_chat({"top_logprobs": value, "logprobs": True}) for value in (-1, 21, True, 0.5)),
    *(_chat({"top_logprobs": 2, **more}) for more in ({}, {"logprobs": False})),
    *(_chat({"messages": value}) for value in (None, [], "hi", [{}], [5], [{"role": "king"}], [{"content": "x"}])),
    *(_chat({"tools": value}) for value in ({}, "f", [{"type": "function"}], [{"type": "custom"}])),
    *(_chat({"tool_choice": value, "tools": [TOOL]}) for value in (5, "maybe", {"type": "function"})),
    *(_chat({"tool_choice": value}) for value in ("required", NAMED)),
    *(_chat({"parallel_tool_calls": value}) for value in (0, "no")), _chat({"tool_call_streaming": "lazy"}),
    *(_chat({"thinking_mode": value}) for value in ("deep", 5)), _chat({"reasoning_field": "neither"}),
    *(_chat({"reasoning_effort": value}) for value in (5, [])), _chat({"drop_thinking": 1}),
    *(_chat({"add_generation_prompt": value}) for value in (1, "yes")), _chat({"chat_template_kwargs": []}),
    _chat({"chat_template_kwargs": {"messages": []}}), _chat({"continue_final_message": "yes"}),
    _chat({"continue_final_message": True}),
    _chat({"continue_final_message": True, "messages": AGAIN, "add_generation_prompt": True}),
    *(_completion({"prompt": value}) for value in (None, [], 5, ["a", 1], [[]], [10**8], [-1], [[1, "a"]], [True])),
    *(_completion({"echo": value}) for value in (1, "yes")), *(_completion({"suffix": value}) for value in (5, [])),
    *(_completion({"best_of": value}) for value in (0, True)),
]  # fmt: skip
