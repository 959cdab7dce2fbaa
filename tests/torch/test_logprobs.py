"""Log probabilities against torch's log_softmax."""

from __future__ import annotations

import torch

from pocketllm_torch.engine.logprobs import token_logprobs


def test_log_probabilities_are_exact_and_ranked() -> None:
    logits = torch.randn((6, 97), generator=torch.Generator().manual_seed(0)) * 4
    reference = torch.log_softmax(logits.double(), -1)
    tokens = [3, 96, 0, 50, 7, 7]
    num_top = [0, 1, 5, 20, 2, 0]
    entries = token_logprobs(logits, tokens, num_top, first_row=10)
    assert [entry.row for entry in entries] == [10, 11, 12, 13, 14, 15]
    for row, entry in enumerate(entries):
        assert abs(entry.logprob - float(reference[row, tokens[row]])) < 1e-5
        best = reference[row].argsort(descending=True)[: num_top[row]].tolist()
        assert [token for token, _ in entry.top] == best
        for token, value in entry.top:
            assert abs(value - float(reference[row, token])) < 1e-5


def test_equal_logits_are_ranked_by_id() -> None:
    (entry,) = token_logprobs(torch.zeros((1, 4)), [2], [4])
    assert [token for token, _ in entry.top] == [0, 1, 2, 3]


def test_asking_for_more_than_there_is() -> None:
    (entry,) = token_logprobs(torch.zeros((1, 3)), [0], [20])
    assert len(entry.top) == 3


def test_huge_logits_give_finite_log_probabilities_and_no_rows_give_none() -> None:
    (entry,) = token_logprobs(torch.tensor([[1e4, -1e4, float("-inf")]]), [0], [1])
    assert entry.logprob == 0.0
    assert token_logprobs(torch.empty((0, 3)), [], []) == []
