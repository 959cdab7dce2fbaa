"""One table says what an engine has to declare: the Structs, the checks and the field table agree with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pocketllm.backend_parts.features import EVERY_REQUEST_FIELD
from pocketllm.errors import UnsupportedFeatureError
from pocketllm.fields import CHAT, COMPLETIONS, FIELDS, check_fields
from pocketllm.fields.policy import IN_FORCE, NEEDS, NEVER, STREAM_NEEDS, InForce, Need, needs_of
from pocketllm.fields.requests import check_request, check_streaming
from pocketllm.prompt_spec import PromptSpec
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Capabilities, Constraint, GenerationRequest

BARE = Capabilities(name="bare", max_model_len=64)
SWITCHES = {field.name for field in msgspec.structs.fields(Capabilities) if field.type is bool}

# Capabilities that say how an engine works and that no value of a request needs; streaming is asked of the method.
OF_NO_VALUE = {
    "supports_batch", "supports_streaming", "supports_cancellation", "supports_embeddings", "supports_prefix_caching",
    "batch_invariant",
}  # fmt: skip
# Fields of a request that core or the server acts on, whatever the engine.
SERVED_BY_ALL = {
    "max_tokens", "stop", "n", "top_logprobs", "extra", "prompt", "prompt_tokens", "sampling_params", "request_id",
    "call_id", "metadata", "choices", "constraint", "cache_salt", "deadline_s",
    "messages", "tools", "tool_call_streaming", "thinking_mode", "reasoning_effort", "add_generation_prompt",
    "drop_thinking", "continue_final_message", "chat_template_kwargs", "score_only",
}  # fmt: skip


def asking(row: Need | InForce, value: Any) -> GenerationRequest:
    """A request with this value, where a request keeps it."""
    if row.field == "structured_outputs":
        return GenerationRequest(prompt="x", constraint=Constraint("regex", "a+") if value else None)
    if row.field in SamplingParams.__struct_fields__:
        return GenerationRequest(prompt="x", sampling_params=SamplingParams(**{row.field: value}))
    if row.field in PromptSpec.__struct_fields__:
        return GenerationRequest(prompt="x", metadata={row.field: value})
    return GenerationRequest(prompt="x", **{row.field: value})


def declaring(*names: str) -> Capabilities:
    return msgspec.structs.replace(BARE, **dict.fromkeys(names, True))


def test_every_switch_is_needed_by_a_value_or_by_none() -> None:
    needed = {row.capability for row in (*NEEDS, *STREAM_NEEDS, *IN_FORCE)} - {NEVER}
    assert needed <= SWITCHES
    assert needed | OF_NO_VALUE == SWITCHES
    assert not needed & OF_NO_VALUE


def test_the_features_of_a_whole_sampler_are_those_that_values_need() -> None:
    """Structured output takes more than a sampler."""
    needed = {row.capability for row in (*NEEDS, *STREAM_NEEDS, *IN_FORCE)} - {NEVER}
    assert set(EVERY_REQUEST_FIELD) == needed - {"supports_structured_outputs"}


def test_every_field_of_a_request_is_judged_or_served_by_all() -> None:
    fields = {
        *SamplingParams.__struct_fields__, *GenerationRequest.__struct_fields__, *PromptSpec.__struct_fields__,
    }  # fmt: skip
    judged = {row.field for row in (*NEEDS, *IN_FORCE)}
    assert fields - judged == SERVED_BY_ALL
    assert judged - fields == {"structured_outputs"}  # a request holds it as its constraint


@pytest.mark.parametrize(
    "need", [need for need in NEEDS if need.read], ids=lambda need: f"{need.field}-{need.capability}"
)
def test_a_request_is_refused_without_the_capability_and_served_with_it(need: Need) -> None:
    others = {other.capability for other in needs_of(need.field)} - {need.capability}
    request = asking(need, need.example)
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_request(request, declaring(*others))
    assert caught.value.param == need.field
    if need.capability != NEVER:
        check_request(request, declaring(need.capability, *others))
    for value in need.neutral:
        check_request(asking(need, value), declaring(*others))


@pytest.mark.parametrize("row", IN_FORCE, ids=lambda row: row.field)
def test_a_fixed_value_may_be_repeated_and_not_changed(row: InForce) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_request(asking(row, row.example), BARE)
    assert caught.value.param == row.field
    in_force = msgspec.structs.replace(BARE, **{row.field: row.example})
    check_request(asking(row, row.example), in_force)
    check_request(asking(row, row.example), declaring(row.capability))


def test_the_field_table_has_its_policy_from_the_table_of_needs() -> None:
    for row in FIELDS:
        needs = needs_of(row.name)
        if not needs:
            assert row.needs in ("", NEVER), row.name
            continue
        assert row.needs == needs[0].capability, row.name
        assert all(need.instead and need.remedy for need in needs), row.name
    in_bodies = {row.name for row in FIELDS}
    assert {need.field for need in NEEDS} - in_bodies == {"task", "prompt_logprobs", "adapter"}


@pytest.mark.parametrize(
    "need", [need for need in NEEDS if need.instead], ids=lambda need: f"{need.field}-{need.capability}"
)
def test_a_body_is_refused_without_the_capability_and_served_with_it(need: Need) -> None:
    endpoint = CHAT if need.field in {row.name for row in FIELDS if CHAT in row.endpoints} else COMPLETIONS
    others = {other.capability for other in needs_of(need.field)} - {need.capability}
    with pytest.raises(UnsupportedFeatureError, match="not supported by this server") as caught:
        check_fields({need.field: need.example}, endpoint, declaring(*others))
    assert caught.value.param == need.field
    assert need.instead in caught.value.message
    check_fields({need.field: need.example}, endpoint, declaring(need.capability, *others))


@pytest.mark.parametrize("need", STREAM_NEEDS, ids=lambda need: need.field)
def test_a_stream_is_refused_what_its_chunks_cannot_carry(need: Need) -> None:
    outer, _, inner = need.field.partition(".")
    body = {"stream": True, outer: {inner: need.example} if inner else need.example}
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_fields(body, CHAT, declaring("supports_logprobs"))
    assert caught.value.param == need.field
    check_fields(body, CHAT, declaring("supports_logprobs", need.capability))
    check_fields({**body, "stream": False}, CHAT, declaring("supports_logprobs"))


def test_streaming_in_python_needs_what_it_says() -> None:
    ranked = GenerationRequest(prompt="x", sampling_params=SamplingParams(logprobs=True))
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_streaming(ranked, declaring("supports_logprobs"))
    assert caught.value.param == "logprobs"
    check_streaming(ranked, declaring("supports_logprobs", "supports_streamed_logprobs"))
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_streaming(GenerationRequest(prompt="x"), msgspec.structs.replace(BARE, supports_streaming=False))
    assert caught.value.param == "stream"


def test_metadata_survives_the_typed_form() -> None:
    spec = PromptSpec(messages=[{"role": "user", "content": "x"}], tool_choice="none", parallel_tool_calls=False)
    assert spec.as_metadata() == {
        "messages": [{"role": "user", "content": "x"}], "tool_choice": "none", "parallel_tool_calls": False,
    }  # fmt: skip
    assert PromptSpec.of({**spec.as_metadata(), "of an extension": 1, "suffix": None}) == spec
    assert PromptSpec().as_metadata() == {}
