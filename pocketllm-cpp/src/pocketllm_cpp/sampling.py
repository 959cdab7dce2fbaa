"""Core's sampling parameters as the native engine takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketllm_cpp import _native

if TYPE_CHECKING:
    from pocketllm.sampling_params import SamplingParams


def native_sampling(params: SamplingParams) -> _native.SamplingParams:
    """A copy of ``params``, which core has checked; ``max_tokens`` is set. Any thread."""
    assert params.max_tokens is not None
    sampling = _native.SamplingParams()
    sampling.temperature = params.temperature
    sampling.top_p = 1.0 if params.top_p is None else params.top_p
    sampling.top_k = params.top_k or 0
    sampling.min_p = params.min_p or 0.0
    sampling.repetition_penalty = params.repetition_penalty
    sampling.frequency_penalty = params.frequency_penalty
    sampling.presence_penalty = params.presence_penalty
    sampling.logit_bias = list(params.logit_bias.items())
    sampling.max_tokens = params.max_tokens
    sampling.min_tokens = params.min_tokens
    sampling.logprobs = params.logprobs
    sampling.num_top_logprobs = params.num_top_logprobs
    sampling.prompt_logprobs = params.prompt_logprobs
    return sampling
