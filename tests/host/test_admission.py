"""What a host refuses before the engine hears of it, and what it fills in."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pocketllm.errors import (
    ConfigurationError,
    ContextLengthError,
    DuplicateRequestError,
    QueueFullError,
    UnsupportedFeatureError,
)
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import (
    Capabilities,
    Finish,
    GenerationRequest,
    StepBatch,
)
from tests.host.manual_engine import FULL, DrivenHost, ManualBackend


def test_an_engines_refusal_keeps_its_class_and_field(driven: DrivenHost) -> None:
    reader = driven.submit()
    finish = Finish(reader.handle, "error", "No such thing.", error_kind="UnsupportedFeatureError", param="seed")
    driven.engine.events.post(StepBatch(finished=[finish]))
    driven.drain()
    with pytest.raises(UnsupportedFeatureError, match="No such thing") as caught:
        reader.record.result()
    assert caught.value.param == "seed"


def test_a_text_that_cannot_fit_is_refused_without_tokenizing_it(driven: DrivenHost) -> None:
    with pytest.raises(ContextLengthError, match="at least"):
        driven.submit("x" * 1_000_000)
    with pytest.raises(ConfigurationError, match="at most 64 strings"):
        driven.submit("x", stop=tuple(map(str, range(100))))


def test_limits_are_told_before_any_work(driven: DrivenHost) -> None:
    limit = FULL.max_model_len
    with pytest.raises(ContextLengthError, match=rf"\b100\b.*\b{limit}\b"):
        driven.submit_request(GenerationRequest(prompt_tokens=(5,) * 100))
    with pytest.raises(ContextLengthError, match=r"60 tokens and max_tokens asks for 10.*70.*64") as caught:
        driven.submit_request(GenerationRequest(prompt_tokens=(5,) * 60, sampling_params=SamplingParams(max_tokens=10)))
    assert caught.value.param == "max_tokens"
    reader = driven.submit_request(GenerationRequest(prompt_tokens=(5,) * 60))
    assert driven.engine.requests[0].sampling_params.max_tokens == limit - 60
    assert reader.record.num_prompt_tokens == 60
    with pytest.raises(ConfigurationError, match="this model's ids are 0 to"):
        driven.submit_request(GenerationRequest(prompt_tokens=(10**6,)))
    with pytest.raises(ConfigurationError, match="empty"):
        driven.submit("")
    assert len(driven.engine.requests) == 1


@pytest.mark.parametrize("field", ["prompt", "stop_token_ids", "logit_bias"])
def test_ids_without_a_row_in_the_engine_are_refused(toy_path: Path, field: str) -> None:
    """Also those that the tokenizer has and the engine does not."""
    capabilities = msgspec.structs.replace(FULL, vocab_size=40, supports_logit_bias=True)
    with DrivenHost(toy_path, ManualBackend(capabilities)) as driven:
        assert driven.host.tokenizer.vocab_size > 40
        for token, fits in ((39, True), (40, False)):
            given = {"stop_token_ids": (token,)} if field == "stop_token_ids" else {}
            given |= {"logit_bias": {token: 1.0}} if field == "logit_bias" else {}
            prompt = (token,) if field == "prompt" else (5,)
            request = GenerationRequest(prompt_tokens=prompt, sampling_params=SamplingParams(**given))
            if fits:
                driven.submit_request(request)
                continue
            with pytest.raises(ConfigurationError, match="ids are 0 to 39") as caught:
                driven.submit_request(request)
            assert caught.value.param == field


def test_end_ids_are_resolved_and_left_out_when_ignored(driven: DrivenHost) -> None:
    driven.submit()
    driven.submit(ignore_eos=True)
    driven.submit(stop_token_ids=(7, 7))
    plain, ignoring, more = driven.engine.requests
    assert plain.stop_token_ids == driven.host.prompts.eos_token_ids
    assert ignoring.stop_token_ids == ()
    assert more.stop_token_ids == (*plain.stop_token_ids, 7)


def test_admission_is_bounded_and_ids_are_unique(toy_path: Path, backend: ManualBackend) -> None:
    with DrivenHost(toy_path, backend, max_num_requests=2) as driven:
        first = driven.submit_request(GenerationRequest(prompt="x", request_id="mine"))
        with pytest.raises(DuplicateRequestError, match="mine"):
            driven.submit_request(GenerationRequest(prompt="x", request_id="mine"))
        driven.submit()
        with pytest.raises(QueueFullError, match="max_num_requests"):
            driven.submit()
        driven.engine.finish(first.handle, "stop")
        driven.drain()
        driven.submit_request(GenerationRequest(prompt="x", request_id="mine"))


def test_what_is_not_declared_is_refused_before_the_engine(toy_path: Path) -> None:
    backend = ManualBackend(Capabilities(name="bare", max_model_len=64, temperature=0.7, top_k=20))
    with DrivenHost(toy_path, backend) as driven:
        for name, value in {
            "temperature": 0.1, "top_p": 0.5, "top_k": 3, "seed": 5, "min_p": 0.1, "logprobs": True,
            "repetition_penalty": 1.1, "frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {1: 1.0},
            "min_tokens": 1, "ignore_eos": True, "stop_token_ids": (1,), "prompt_logprobs": True,
            "response_format": {"type": "json_object"},
        }.items():  # fmt: skip
            fields = {"temperature": 0.7, name: value}
            with pytest.raises(UnsupportedFeatureError) as caught:
                driven.submit(**fields)
            assert caught.value.param == name
        with pytest.raises(UnsupportedFeatureError, match="every choice would be the same"):
            driven.submit(temperature=0.7, n=2)
        driven.submit(temperature=0.7, top_k=20, top_p=1.0, seed=0, response_format={"type": "text"})
        assert len(driven.engine.requests) == 1
