"""Completions: requests of one or several prompts, given as text or token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.errors import ConfigurationError, shown
from pocketllm.fields import COMPLETIONS, check_fields
from pocketllm.fields.token_ids import are_token_ids
from pocketllm.prompt_spec import PromptSpec
from pocketllm.protocol.body_fields import build_request, given_or_default, present, sampling_of, truth_of
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Capabilities, GenerationRequest, new_request_id

Prompt = str | Sequence[int]
"""Text, or token ids."""


def completion_request(body: Mapping[str, Any], capabilities: Capabilities | None = None) -> list[GenerationRequest]:
    """The requests of a ``/v1/completions`` body, one per prompt in order.

    ``logprobs`` is a count here. Raises as :func:`pocketllm.protocol.chat_request`.
    """
    body = present(body)
    if capabilities is not None:
        check_fields(body, COMPLETIONS, capabilities)
    if "prompt" not in body:
        raise ConfigurationError('"prompt" is missing: send text, token ids, or a list of either.', param="prompt")
    sampling, spec = _completion_spec(body)
    params = sampling_of(sampling, capabilities)
    if spec.echo and params.logprobs:
        params = msgspec.structs.replace(params, prompt_logprobs=True)
    call_id = body.get("request_id", new_request_id())
    return [
        build_request(
            {**body, "request_id": _part_id(call_id, index)},
            params,
            spec,
            call_id=call_id,
            **_prompt_fields(prompt),
        )
        for index, prompt in enumerate(split_prompts(body["prompt"]))
    ]


def _completion_spec(body: Mapping[str, Any]) -> tuple[dict[str, Any], PromptSpec]:
    """The sampling fields as the sampler means them, and what the prompt and the answer need to know."""
    sampling = dict(body)
    if "logprobs" in sampling:
        sampling["top_logprobs"] = sampling["logprobs"]
        sampling["logprobs"] = True
    echo = truth_of(body, "echo", False)
    name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    score_only = echo and sampling.get(name) == 0 and sampling[name] is not False
    if score_only:
        # OpenAI's way to have a prompt scored. A sequence has at least one step, whose token is then not shown.
        sampling[name] = 1
    suffix = body.get("suffix", "")
    if not isinstance(suffix, str):
        raise ConfigurationError(f"suffix = {shown(suffix)} is not a string.", param="suffix")
    return sampling, PromptSpec(suffix=suffix, echo=echo, score_only=score_only)


def prompt_requests(
    prompts: Prompt | Sequence[Prompt],
    sampling_params: SamplingParams | None,
    request_id: str | None,
) -> list[GenerationRequest]:
    """The requests of ``LLM.generate``, one per prompt in order."""
    params = given_or_default(sampling_params)
    spec = PromptSpec()
    call_id = new_request_id() if request_id is None else request_id
    return [
        build_request({"request_id": _part_id(call_id, index)}, params, spec, call_id=call_id, **_prompt_fields(prompt))
        for index, prompt in enumerate(split_prompts(prompts))
    ]


def split_prompts(prompts: object) -> list[Prompt]:
    """Tell text, a list of texts, token ids and lists of token ids apart.

    Raises:
        ConfigurationError: anything else, an empty list, or a mixture.
    """
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
        raise ConfigurationError(
            f"prompt is {type(prompts).__name__}: give text, token ids, or a list of either.", param="prompt"
        )
    if not prompts:
        raise ConfigurationError("prompt is an empty list: give at least one prompt.", param="prompt")
    if are_token_ids(prompts):
        return [tuple(prompts)]
    parts: list[Prompt] = []
    for index, item in enumerate(prompts):
        if isinstance(item, str):
            parts.append(item)
        elif isinstance(item, Sequence) and item and are_token_ids(item):
            parts.append(tuple(item))
        else:
            raise ConfigurationError(
                f"prompt[{index}] is {shown(item)}: every entry must be text or a non-empty list of token ids.",
                param="prompt",
            )
    return parts


def _prompt_fields(prompt: Prompt) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"prompt_tokens": tuple(prompt)}


def _part_id(call_id: object, index: int) -> object:
    """The request id of one prompt of a call: the first has the call's id, a further one a number behind it."""
    return call_id if index == 0 else f"{call_id}#{index}"
