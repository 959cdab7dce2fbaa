"""What core lends to the authors of backends: refusals of a probe, ranges of options, limits, features."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pocketllm.backend_parts import (
    EVERY_REQUEST_FIELD,
    check_range,
    refused_arguments,
    refused_tensors,
    tokenizer_or_none,
    usable_vocab_size,
)
from pocketllm.checkpoint import Checkpoint, Tokenizer
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import CheckpointError, ConfigurationError
from pocketllm.fields.requests import check_request
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Capabilities, GenerationRequest


class Headers:
    """A checkpoint with tensors of the given types; without any, its headers cannot be read."""

    def __init__(self, *dtypes: str) -> None:
        self._dtypes = dtypes

    @property
    def tensors(self) -> dict[str, Any]:
        if not self._dtypes:
            raise CheckpointError("The header is cut short.")
        return {f"tensor {index}": SimpleNamespace(dtype=dtype) for index, dtype in enumerate(self._dtypes)}

    def tokenizer(self) -> Tokenizer:
        raise CheckpointError("There is no tokenizer.json.")


def headers(*dtypes: str) -> Checkpoint:
    return cast("Checkpoint", Headers(*dtypes))


def test_arguments_that_few_engines_have_are_refused_by_name_and_value() -> None:
    assert refused_arguments(EngineArgs(model="m")) is None
    window = refused_arguments(EngineArgs(model="m", attention_window=128))
    assert window == "attention_window = 128: it has the checkpoint's own windows only. Set it to 0."
    speculative = refused_arguments(EngineArgs(model="m", speculative_method="mtp"))
    assert speculative == "speculative_method = 'mtp': it has no speculative decoding. Leave it out."


def test_types_that_a_backend_does_not_read_are_listed_once_and_in_order() -> None:
    reads = {"F32", "Q8_0"}.__contains__
    assert refused_tensors(headers("F32", "Q8_0", "F32"), reads) is None
    answer = refused_tensors(headers("Q9_K", "F32", "I8", "Q9_K"), reads)
    assert answer == "It does not read tensors of type I8, Q9_K."
    assert refused_tensors(headers(), reads) == "The header is cut short."


@pytest.mark.parametrize("value", [None, 1, 8])
def test_a_number_in_its_range_passes_and_so_does_none(value: int | None) -> None:
    check_range({"num_threads": value}, "num_threads", 1, 8)
    check_range({}, "num_threads", 1, 8)


@pytest.mark.parametrize(
    ("value", "high", "words"),
    [(0, 8, "from 1 to 8"), (9, 8, "from 1 to 8"), (0, None, "of at least 1"), (-5, None, "= -5 is out of range")],
)
def test_a_number_out_of_its_range_is_named_with_the_range(value: int, high: int | None, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        check_range({"num_threads": value}, "num_threads", 1, high)
    assert caught.value.param == "backend_options.num_threads"


def test_a_checkpoint_without_a_tokenizer_has_all_rows_of_its_head() -> None:
    assert tokenizer_or_none(headers("F32")) is None
    assert usable_vocab_size(300, None) == 300


def test_rows_past_the_tokenizer_are_padding_and_a_larger_tokenizer_adds_none() -> None:
    tokenizer = cast("Tokenizer", SimpleNamespace(vocab_size=288))
    assert usable_vocab_size(300, tokenizer) == 288
    assert usable_vocab_size(280, tokenizer) == 280


def test_an_engine_with_every_feature_is_refused_no_sampling_field() -> None:
    """Each field away from its neutral value is refused without the features and passes with them."""
    full = Capabilities(name="full", max_model_len=64, **EVERY_REQUEST_FIELD)
    bare = Capabilities(name="bare", max_model_len=64)
    fields: list[dict[str, Any]] = [
        {"logprobs": True},
        {"prompt_logprobs": True},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5},
        {"logit_bias": {3: 1.0}},
        {"min_tokens": 2},
        {"ignore_eos": True},
        {"stop_token_ids": (3,)},
        {"temperature": 0.7},
        {"top_k": 5},
    ]
    requests = [GenerationRequest(prompt="x", sampling_params=SamplingParams(**values)) for values in fields]
    requests.append(GenerationRequest(prompt="x", priority=1))
    requests.append(GenerationRequest(prompt="x", metadata={"suffix": "y"}))
    for request in requests:
        check_request(request, full)
        with pytest.raises(Exception, match="is not supported by this server"):
            check_request(request, bare)
