"""The gated delta rule: every form against the formula token by token, and the convolution against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pocketllm_torch.kernels.delta_net import reference, segments, single
from pocketllm_torch.kernels.delta_net.convolution import convolve, convolve_single

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

# Heads, key_dim, value_dim, and the strength of the decay: none, usual, and so strong that exp(-sum) overflows.
CASES = [(1, 4, 4, 0.0), (2, 8, 16, 0.5), (3, 16, 8, 40.0)]
LENGTHS = (1, 2, segments.SEGMENT - 1, segments.SEGMENT, segments.SEGMENT + 1, 3 * segments.SEGMENT + 7)


def inputs(length: int, heads: int, key_dim: int, value_dim: int, decay: float) -> Inputs:
    generator = torch.Generator().manual_seed(length + heads)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    q, k = (F.normalize(random(length, heads, key_dim), dim=-1) for _ in range(2))
    g = -decay * torch.rand((length, heads), generator=generator)
    return q, k, random(length, heads, value_dim), g, torch.rand((length, heads), generator=generator)


def start_state(heads: int, key_dim: int, value_dim: int) -> torch.Tensor:
    return torch.randn((heads, key_dim, value_dim), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_segments_equal_the_formula(case: tuple[int, int, int, float], length: int) -> None:
    heads, key_dim, value_dim, decay = case
    given = inputs(length, heads, key_dim, value_dim, decay)
    expected_state, state = (start_state(heads, key_dim, value_dim) for _ in range(2))
    expected = reference.delta_rule(*given, expected_state)
    torch.testing.assert_close(segments.delta_rule(*given, state), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, expected_state, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_single_tokens_equal_the_formula(case: tuple[int, int, int, float]) -> None:
    """Five sequences together, each with a state of its own."""
    heads, key_dim, value_dim, decay = case
    given = inputs(5, heads, key_dim, value_dim, decay)
    states = torch.stack([start_state(heads, key_dim, value_dim) * scale for scale in range(5)])
    expected_states = states.clone()
    found = single.delta_rule(*given, states)
    for row in range(5):
        alone = tuple(part[row : row + 1] for part in given)
        expected = reference.delta_rule(*alone, expected_states[row])  # type: ignore[arg-type]  # five tensors
        torch.testing.assert_close(found[row : row + 1], expected)
    torch.testing.assert_close(states, expected_states)


@pytest.mark.parametrize("cuts", [(1, 99), (64, 36), (30, 40, 30)])
def test_a_span_may_be_cut_anywhere(cuts: tuple[int, ...]) -> None:
    given = inputs(sum(cuts), 2, 8, 8, 0.5)
    whole_state, state = start_state(2, 8, 8), start_state(2, 8, 8)
    whole = segments.delta_rule(*given, whole_state)
    pieces = [segments.delta_rule(*part, state) for part in zip(*(tensor.split(cuts) for tensor in given), strict=True)]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, whole_state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 3, 20])
def test_the_convolution_is_torchs_causal_one(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    rows, tail = torch.randn((length, 6), generator=generator), torch.randn((3, 6), generator=generator)
    weight = torch.randn((6, 4), generator=generator)
    found, new_tail = convolve(rows, tail, weight)
    joined = torch.cat([tail, rows])
    expected = F.silu(F.conv1d(joined.T.unsqueeze(0), weight.unsqueeze(1), groups=6))[0].T
    torch.testing.assert_close(found, expected)
    assert torch.equal(new_tail, joined[length:])


def test_a_single_row_is_convolved_like_a_span_of_one() -> None:
    generator = torch.Generator().manual_seed(5)
    rows, tails = torch.randn((4, 6), generator=generator), torch.randn((4, 3, 6), generator=generator)
    weight = torch.randn((6, 4), generator=generator)
    found, new_tails = convolve_single(rows, tails, weight)
    for row in range(4):
        expected, tail = convolve(rows[row : row + 1], tails[row], weight)
        torch.testing.assert_close(found[row : row + 1], expected)
        assert torch.equal(new_tails[row], tail)
