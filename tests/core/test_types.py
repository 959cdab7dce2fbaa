"""Boundary types: frozen, checked, terse, and equal after a trip through msgpack."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from typing import Any

import msgspec
import pytest

import pocketllm
from pocketllm import errors, types
from pocketllm.errors import ConfigurationError, PocketLLMError, UnsupportedFeatureError
from pocketllm.fields.requests import check_request
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Capabilities, Choice, GenerationRequest, HealthStatus, StepBatch, TimingMetrics, Usage


def test_every_boundary_type_is_frozen() -> None:
    structs = [value for value in vars(types).values() if inspect.isclass(value) and issubclass(value, msgspec.Struct)]
    assert len(structs) > 15
    assert all(struct.__struct_config__.frozen for struct in structs)


def test_a_request_survives_msgpack_and_hides_its_prompt() -> None:
    request = GenerationRequest(
        prompt_tokens=(1, 2), choices=(Choice(7, 8),), sampling_params=SamplingParams(logit_bias={5: 1.5}, stop="x"),
        metadata={"messages": [{"role": "user", "content": "secret"}]}, deadline_s=1.5,
    )  # fmt: skip
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerationRequest)
    assert copy == request
    assert "secret" not in repr(request)
    assert "secret" not in repr(GenerationRequest(prompt="secret"))
    with pytest.raises(ConfigurationError, match="needs a prompt"):
        GenerationRequest()


def test_a_step_batch_of_64_tokens_is_small() -> None:
    batch = StepBatch(handles=list(range(64)), tokens=[40_000] * 64, flags=[0] * 64)
    data = msgspec.msgpack.encode(batch)
    assert len(data) < 777
    assert msgspec.msgpack.decode(data, type=StepBatch) == batch


@pytest.mark.parametrize(
    "name, bad",
    [
        ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", True), ("temperature", -0.1), ("temperature", math.nan),
        ("temperature", math.inf), ("temperature", "1"), ("top_p", 0), ("top_p", 1.01), ("top_p", math.nan),
        ("top_k", 0), ("top_k", -1), ("min_p", -0.1), ("min_p", 1.1), ("seed", 1.5), ("seed", 2**64),
        ("repetition_penalty", 0), ("repetition_penalty", 5e-324),
        ("repetition_penalty", 101), ("frequency_penalty", 2.1), ("presence_penalty", -2.1),
        ("logit_bias", {"x": 1}), ("logit_bias", {1: math.nan}), ("logit_bias", {1: 101}), ("logit_bias", {-1: 1}),
        ("logit_bias", 5), ("min_tokens", -1), ("ignore_eos", 1), ("stop", 5), ("stop", ["a", 5]), ("stop", ""),
        ("stop", ["a", ""]), ("stop_token_ids", [-1]), ("stop_token_ids", "ab"), ("stop_token_ids", [True]), ("n", 0),
        ("n", 129), ("n", 1.0), ("n", True), ("logprobs", 1), ("top_logprobs", 21), ("top_logprobs", -1),
        ("prompt_logprobs", 3),
    ],
)  # fmt: skip
def test_sampling_bounds_are_checked_and_named(name: str, bad: Any) -> None:
    fields = {"logprobs": True, name: bad} if name == "top_logprobs" else {name: bad}
    with pytest.raises(ConfigurationError) as caught:
        SamplingParams(**fields)
    assert caught.value.param == name
    assert name in caught.value.message


def test_sampling_parameters_have_defaults_and_derived_values() -> None:
    params = SamplingParams()
    assert params.greedy
    assert params.max_tokens is None
    assert params.token_budget(10) == 10
    assert params.token_budget(-1) == 1
    assert SamplingParams(max_tokens=3).token_budget(10) == 3
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]  # lists are accepted
    assert SamplingParams(logprobs=True).num_top_logprobs == 0
    with pytest.raises(ConfigurationError, match="needs logprobs"):
        SamplingParams(top_logprobs=2)
    with pytest.raises(ConfigurationError, match="above max_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)
    body = {"max_tokens": 1, "max_completion_tokens": 2, "temperature": None, "foo": "bar"}
    from_body = SamplingParams.from_openai(body)
    assert (from_body.max_tokens, from_body.temperature, from_body.extra) == (2, 0.0, {"foo": "bar"})


def test_a_default_temperature_is_told_from_an_explicit_zero() -> None:
    assert not SamplingParams().temperature_given
    assert not msgspec.structs.replace(SamplingParams(), max_tokens=3).temperature_given
    assert SamplingParams(temperature=0.0).temperature_given
    assert SamplingParams(temperature=float("0")).temperature_given
    assert SamplingParams(temperature=0).temperature_given
    assert SamplingParams() == SamplingParams(temperature=0.0)


def test_decoding_gives_the_same_messages_as_constructing() -> None:
    with pytest.raises(msgspec.ValidationError, match="temperature"):
        msgspec.json.decode(b'{"temperature": -1}', type=SamplingParams)


def test_usage_and_health_can_be_told_as_dicts() -> None:
    usage = Usage(prompt_tokens=3, completion_tokens=4)
    assert usage.as_dict() == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    cached = msgspec.structs.replace(usage, cached_tokens=2)
    assert cached.as_dict()["prompt_tokens_details"] == {"cached_tokens": 2}
    health = HealthStatus(status="ready", backend="x", ready=True, details={"epoch": 1})
    assert health.alive
    assert health.as_dict()["epoch"] == 1
    assert not HealthStatus(status="closed").alive
    assert TimingMetrics(total_seconds=1.0).as_dict() == {"total_seconds": 1.0}


def test_capabilities_answer_by_feature_name() -> None:
    capabilities = Capabilities(
        name="x", max_model_len=1, supports_logprobs=True, supports_speculative_decoding=("mtp",)
    )
    assert capabilities.supports("logprobs")
    assert capabilities.supports("supports_logprobs")
    assert capabilities.supports("speculative_decoding")
    assert not capabilities.supports("penalties")
    assert not capabilities.supports("telepathy")


def test_neutral_values_pass_every_engine() -> None:
    bare = Capabilities(name="bare", max_model_len=8)
    neutral = SamplingParams(
        repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0, logit_bias={}, min_p=0.0, min_tokens=0,
        n=3, response_format={"type": "text"}, top_p=1.0, seed=0,
    )  # fmt: skip
    check_request(GenerationRequest(prompt="x", sampling_params=neutral), bare)
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_request(GenerationRequest(prompt="x", adapter="lora"), bare)
    assert caught.value.param == "adapter"


def test_the_error_tree_has_one_root_and_says_its_status() -> None:
    classes = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]
    assert all(issubclass(value, PocketLLMError) for value in classes)
    assert errors.RequestCancelledError.status == 499
    assert errors.UnsupportedFeatureError.status == 400
    assert errors.BackendUnavailableError.status == 503
    assert issubclass(errors.ConfigurationError, ValueError)


def test_every_public_name_resolves() -> None:
    for name in pocketllm.__all__:
        assert getattr(pocketllm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pocketllm.nonsense
    assert set(pocketllm.__all__) <= set(dir(pocketllm))


def test_importing_core_imports_no_runtime() -> None:
    program = (
        "import sys; import pocketllm.llm, pocketllm.async_llm, pocketllm.protocol, pocketllm.plugins.registry;"
        "bad = {'torch', 'numpy', 'triton', 'jinja2', 'tokenizers', 'llguidance', 'rich', 'click'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
