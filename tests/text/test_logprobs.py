"""Log probabilities as they are kept and as they are shown."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pocketllm.text.logprobs import pack_logprob, render_logprob

IDS = st.integers(0, 2**31 - 1)
LOGPROBS = st.floats(max_value=0.0, allow_nan=False)


class Words:
    """Token i is ``<i>``, and every third ends within a character."""

    def token_bytes(self, token_id: int) -> bytes:
        return f"<{token_id}>".encode() + b"\xe9\x9b" * (token_id % 3 == 0)


@given(IDS, LOGPROBS, st.lists(st.tuples(IDS, LOGPROBS), max_size=20))
def test_what_was_packed_is_shown_as_if_it_had_not_been(
    token_id: int, logprob: float, top: list[tuple[int, float]]
) -> None:
    packed = pack_logprob(Words(), token_id, logprob, top)
    assert packed.render() == render_logprob(Words(), token_id, logprob, top)


def test_an_entry_has_exact_bytes_and_a_readable_surface() -> None:
    entry = pack_logprob(Words(), 3, -0.5, [(3, -0.5), (4, -math.inf)]).render()
    assert (entry.token, bytes(entry.bytes), entry.token_id) == ("<3>\ufffd", b"<3>\xe9\x9b", 3)
    assert [(top.token_id, top.logprob) for top in entry.top_logprobs] == [(3, -0.5), (4, -math.inf)]
