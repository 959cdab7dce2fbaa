"""From logits to tokens, each sequence by its own rules.

Order, per row: repetition, frequency and presence penalty; logit bias; stop ids masked while ``min_tokens`` is not
reached; the allowed-token mask. A greedy row then takes the largest logit (the lowest id of equals). Otherwise the
logits are divided by the temperature, and what is kept shrinks by top_k, then top_p (of the probability that top_k
left), then min_p (relative to the most probable token); one uniform number picks among the rest.

Every operation treats rows independently, so a row's token does not depend on the other rows.
"""

from __future__ import annotations

import torch

from pocketllm.errors import EngineError
from pocketllm.sampling_params import SamplingParams
from pocketllm.structured import TokenMatcher
from pocketllm.types import GenerationRequest
from pocketllm_torch.engine.masks import MaskBuffer
from pocketllm_torch.engine.random_numbers import uniform
from pocketllm_torch.engine.sequence import SamplingState, Sequence

# Candidates looked at first for top_p; a nucleus that is wider is found among all tokens.
_NUCLEUS_CANDIDATES = 256


class Sampler:
    """Samples one token per row. Threads: only the engine's thread calls it."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self._device = device
        self._masks = MaskBuffer(vocab_size, device)

    def start(self, request: GenerationRequest, matcher: TokenMatcher | None = None) -> SamplingState:
        """The state that sampling for one choice of a request begins with."""
        params = request.sampling_params
        penalized = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1.0, 0.0, 0.0)
        plain = not penalized and not params.logit_bias and params.min_tokens == 0 and matcher is None
        state = SamplingState(params, plain, matcher)
        if penalized:
            state.counts = torch.zeros(self.vocab_size, dtype=torch.int32, device=self._device)
            state.seen = torch.zeros(self.vocab_size, dtype=torch.bool, device=self._device)
            state.seen[self._ids(request.prompt_tokens)] = True
        if params.logit_bias:
            state.bias_ids = self._ids(params.logit_bias)
            state.bias_values = torch.tensor(list(params.logit_bias.values()), device=self._device)
        stop_ids = sorted(token for token in set(request.stop_token_ids) if token < self.vocab_size)
        if params.min_tokens and stop_ids:
            state.stop_ids = self._ids(stop_ids)
        return state

    def sample(self, logits: torch.Tensor, sequences: list[Sequence], *, num_ahead: int = 0) -> list[int]:
        """One token per row of ``logits`` (raw, float32 [R, vocab], left unchanged), and each state moved on by it.

        Args:
            num_ahead: tokens already sampled for each sequence and not yet appended to it.

        A row whose constraint cannot be followed says so in its state's ``error``; the other rows are not concerned.
        """
        states = [_state(sequence) for sequence in sequences]
        if not all(state.plain for state in states):
            logits = logits.clone()
            for row, (sequence, state) in enumerate(zip(sequences, states, strict=True)):
                if not state.plain:
                    self._adjust(logits[row], state, sequence.num_generated + num_ahead)
        # The first of equal logits; the same as argmax, and faster on CPUs.
        tokens: list[int] = logits.max(dim=-1).indices.tolist()
        for row, (sequence, state) in enumerate(zip(sequences, states, strict=True)):
            if not state.params.greedy:
                number = uniform(sequence.seed, sequence.num_generated + num_ahead)
                tokens[row] = pick(logits[row], state.params, number)
        for token, state in zip(tokens, states, strict=True):
            if state.counts is not None and state.seen is not None:
                state.counts[token] += 1
                state.seen[token] = True
            if state.matcher is not None and state.error is None and not state.matcher.accept(token):
                state.error = f"Token {token} was sampled, which the constraint does not allow."
        return tokens

    def _adjust(self, row: torch.Tensor, state: SamplingState, num_generated: int) -> None:
        if state.counts is not None and state.seen is not None:
            apply_penalties(row, state.counts, state.seen, state.params)
        if state.bias_ids is not None and state.bias_values is not None:
            row.index_add_(0, state.bias_ids, state.bias_values)
        matcher = state.matcher
        # A text that its constraint has completed cannot be made longer.
        complete = matcher is not None and matcher.is_done
        if state.stop_ids is not None and num_generated < state.params.min_tokens and not complete:
            row.index_fill_(0, state.stop_ids, float("-inf"))
        if matcher is not None:
            try:
                self._masks.apply(row, matcher)
            except EngineError as error:
                state.error = error.message

    def _ids(self, ids: object) -> torch.Tensor:
        return torch.tensor(list(ids), dtype=torch.int64, device=self._device)  # type: ignore[call-overload]  # any iterable of ids


def apply_penalties(row: torch.Tensor, counts: torch.Tensor, seen: torch.Tensor, params: SamplingParams) -> None:
    """Change logits ``row`` [vocab] in place.

    Repetition (over prompt and answer): positive logits are divided, negative ones multiplied. Frequency and presence
    (over the answer): subtracted per occurrence, and once.
    """
    penalty = params.repetition_penalty
    if penalty != 1.0:
        row.copy_(torch.where(seen, torch.where(row > 0, row / penalty, row * penalty), row))
    if params.frequency_penalty:
        row.sub_(counts * params.frequency_penalty)
    if params.presence_penalty:
        row.sub_((counts > 0) * params.presence_penalty)


def pick(row: torch.Tensor, params: SamplingParams, number: float) -> int:
    """Sample from adjusted logits ``row`` [vocab] with a uniform ``number`` in [0, 1)."""
    scaled = (row / params.temperature).double()
    probabilities = torch.softmax(scaled, dim=-1)
    top_k = params.top_k if params.top_k is not None and params.top_k < row.shape[0] else None
    top_p = params.top_p if params.top_p is not None and params.top_p < 1.0 else None
    ids = None
    if top_k is not None:
        probabilities, ids = torch.topk(probabilities, top_k)
        probabilities /= probabilities.sum()
    if top_p is not None:
        probabilities, ids = _nucleus(probabilities, ids, top_p)
    if params.min_p:
        probabilities = probabilities * (probabilities >= params.min_p * probabilities.max())
    cumulative = probabilities.cumsum(dim=-1)
    # The first entry past the drawn mass; an entry of probability 0 is never the first.
    index = int(torch.searchsorted(cumulative, cumulative[-1] * number, right=True))
    index = min(index, int(probabilities.nonzero()[-1])) if index >= cumulative.shape[0] else index
    return index if ids is None else int(ids[index])


def _nucleus(probabilities: torch.Tensor, ids: torch.Tensor | None, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The most probable entries whose sum reaches ``top_p``, and the token id of each.

    The entry that crosses the border is kept, so at least one is.
    """
    if ids is None:
        count = min(_NUCLEUS_CANDIDATES, probabilities.shape[0])
        best, ids = torch.topk(probabilities, count)
        if float(best.sum()) < top_p:
            best, ids = torch.sort(probabilities, descending=True, stable=True)
        probabilities = best
    before = probabilities.cumsum(dim=-1) - probabilities
    keep = int((before < top_p).sum())
    return probabilities[:keep], ids[:keep]


def _state(sequence: Sequence) -> SamplingState:
    assert sequence.sampling is not None
    return sequence.sampling
