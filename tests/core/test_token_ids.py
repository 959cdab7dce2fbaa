"""What counts as token ids, whatever the length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pocketllm.fields.token_ids import are_token_ids, in_vocabulary

ITEMS = st.one_of(st.integers(-2, 12), st.booleans(), st.text(max_size=1), st.floats(0, 9), st.none(), st.just([1]))


@given(items=st.lists(ITEMS, max_size=5))
def test_agrees_with_looking_at_each(items: list[object]) -> None:
    each = [isinstance(item, int) and not isinstance(item, bool) for item in items]
    assert are_token_ids(items) is all(each)
    inside = all(isinstance(item, int) and 0 <= item < 10 for item in items)
    assert in_vocabulary(items, 10) is (all(each) and inside)
