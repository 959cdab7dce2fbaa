"""A language model without weights: deterministic, instant, and honest about every sampling value.

The next-token distribution is a pure function of the last few tokens and of one favourite token, which a script names.
The favourite has the highest raw logit, :data:`NUM_CANDIDATES` others (picked by a checksum of the context) lie below
it, and the rest of the vocabulary shares a floor that no draw reaches. So a greedy run plays the script exactly, and
temperature, truncation, penalties, biases and log probabilities act as they would on a real model.
"""

from __future__ import annotations

import itertools
import math
import random
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

from pocketllm.engine.iterator_engine import Emission
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import GenerationRequest, PromptReport, TokenLogprob

NUM_CANDIDATES = 24
CONTEXT_TOKENS = 4
FAVOURITE_LOGIT = 3.0
LOW_LOGIT, HIGH_LOGIT = -2.0, 1.0
FLOOR_LOGIT = -40.0


def toy_logits(context: Sequence[int], favourite: int | None, vocab_size: int) -> dict[int, float]:
    """Raw logits of the candidates after ``context``; every other id has :data:`FLOOR_LOGIT`."""
    mixed = zlib.crc32(array("q", context[-CONTEXT_TOKENS:]).tobytes())
    logits: dict[int, float] = {}
    for index in range(min(NUM_CANDIDATES, vocab_size)):
        mixed = zlib.crc32(index.to_bytes(4, "little"), mixed)
        logits[mixed % vocab_size] = LOW_LOGIT + (HIGH_LOGIT - LOW_LOGIT) * (mixed >> 8) / 2**24
    if favourite is not None:
        logits[favourite] = FAVOURITE_LOGIT
    return logits


def log_normalizer(logits: dict[int, float], vocab_size: int) -> float:
    """log of the sum of exp(logit) over the whole vocabulary."""
    rest = (vocab_size - len(logits)) * math.exp(FLOOR_LOGIT)
    return math.log(math.fsum(math.exp(logit) for logit in logits.values()) + rest)


def ranked(logits: dict[int, float]) -> list[tuple[int, float]]:
    """Candidates, best first; equal logits by id."""
    return sorted(logits.items(), key=lambda pair: (-pair[1], pair[0]))


class ToySequence:
    """One sequence of the toy model: its context, its random numbers, and what its sampling values do.

    Args:
        request: prompt, stop ids and the wanted log probabilities; ``choices[0].seed`` unless ``seed`` is given.
        params: the sampling values in force (the request's own, or an engine's fixed ones).
    """

    def __init__(
        self, request: GenerationRequest, params: SamplingParams, vocab_size: int, seed: int | None = None
    ) -> None:
        self._vocab_size = vocab_size
        self._params = params
        self._wanted = request.sampling_params
        self._stop_ids = frozenset(request.stop_token_ids)
        self._context = list(request.prompt_tokens)
        self._num_prompt_tokens = len(self._context)
        self._prompt_ids = frozenset(self._context)
        self._generated: Counter[int] = Counter()
        self._random = random.Random(request.choices[0].seed if seed is None else seed)
        # A greedy run with neutral values takes the favourite whatever the rest of the distribution is.
        self._plays_script = params.greedy and not (
            params.logit_bias
            or params.min_tokens
            or params.presence_penalty
            or params.frequency_penalty
            or params.repetition_penalty != 1.0
        )

    def prompt_report(self) -> PromptReport | None:
        """Log probabilities of the prompt's own tokens, where the request asks for them."""
        if not self._wanted.prompt_logprobs:
            return None
        entries = []
        for position in range(1, self._num_prompt_tokens):
            logits = toy_logits(self._context[:position], None, self._vocab_size)
            logprob, top = self._logprobs(logits, self._context[position])
            entries.append(TokenLogprob(row=position, logprob=logprob, top=top))
        return PromptReport(handle=0, logprobs=entries)

    def play(self, script: Sequence[int], *, go_on: bool) -> Iterator[int | Emission]:
        """One item per step: the script's tokens where sampling lets them be; ``go_on`` repeats the last one."""
        if not script:
            return
        tail: Iterator[int] = itertools.repeat(script[-1]) if go_on else iter(())
        for favourite in itertools.chain(script, tail):
            yield self._step(favourite)

    def _step(self, favourite: int) -> int | Emission:
        if self._plays_script and not self._wanted.logprobs:
            return favourite
        logits = toy_logits(self._context, favourite, self._vocab_size)
        token = favourite if self._plays_script else self._draw(self._adjusted(logits))
        self._context.append(token)
        self._generated[token] += 1
        if not self._wanted.logprobs:
            return token
        logprob, top = self._logprobs(logits, token)
        return Emission(token_id=token, logprob=logprob, top=top)

    def _logprobs(self, logits: dict[int, float], token: int) -> tuple[float, list[tuple[int, float]]]:
        total = log_normalizer(logits, self._vocab_size)
        top = [(index, logit - total) for index, logit in ranked(logits)[: self._wanted.num_top_logprobs]]
        return logits.get(token, FLOOR_LOGIT) - total, top

    def _adjusted(self, logits: dict[int, float]) -> dict[int, float]:
        """Penalties (repetition over prompt and answer, the others over the answer), biases, the min_tokens mask."""
        params = self._params
        adjusted = dict(logits)
        for token in logits:
            count = self._generated[token]
            if params.repetition_penalty != 1.0 and (count or token in self._prompt_ids):
                scale = params.repetition_penalty
                adjusted[token] = adjusted[token] / scale if adjusted[token] > 0 else adjusted[token] * scale
            adjusted[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        for token, bias in params.logit_bias.items():
            if token < self._vocab_size:
                adjusted[token] = adjusted.get(token, FLOOR_LOGIT) + bias
        if self._generated.total() < params.min_tokens:
            adjusted = {token: logit for token, logit in adjusted.items() if token not in self._stop_ids}
        return adjusted

    def _draw(self, logits: dict[int, float]) -> int:
        """Temperature, then top-k, top-p and min-p over the candidates, then one draw."""
        params, order = self._params, ranked(logits)
        if params.greedy:
            return order[0][0]
        best = order[0][1]
        weights = [math.exp((logit - best) / params.temperature) for _, logit in order]
        keep = len(weights) if not params.top_k else min(params.top_k, len(weights))
        if params.top_p is not None and params.top_p < 1.0:
            mass = list(itertools.accumulate(weights[:keep]))
            keep = next(index for index, reached in enumerate(mass, 1) if reached >= params.top_p * mass[-1])
        if params.min_p:
            keep = min(keep, sum(weight >= params.min_p for weight in weights))
        return self._random.choices(order[:keep], weights[:keep])[0][0]
