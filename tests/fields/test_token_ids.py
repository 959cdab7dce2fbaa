"""What counts as token ids, whatever the length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.errors import ConfigurationError
from pocketllm.fields.token_ids import are_token_ids, check_token_ids, in_vocabulary

ITEMS = st.one_of(st.integers(-2, 12), st.booleans(), st.text(max_size=1), st.floats(0, 9), st.none(), st.just([1]))


@given(items=st.lists(ITEMS, max_size=5))
def test_the_quick_check_agrees_with_looking_at_each_id(items: list[object]) -> None:
    each = [isinstance(item, int) and not isinstance(item, bool) for item in items]
    assert are_token_ids(items) is all(each)
    inside = all(isinstance(item, int) and 0 <= item < 10 for item in items)
    assert in_vocabulary(items, 10) is (all(each) and inside)


@pytest.mark.parametrize(("ids", "named"), [((0, 10), "10"), ((-1,), "-1"), ((3, True), "True")])
def test_the_first_strange_id_is_named_with_its_field(ids: tuple[int, ...], named: str) -> None:
    with pytest.raises(ConfigurationError, match=rf'"stop_token_ids" holds the token id {named}, .* 0 to 9') as caught:
        check_token_ids("stop_token_ids", ids, 10)
    assert caught.value.param == "stop_token_ids"


def test_ids_of_the_vocabulary_pass() -> None:
    check_token_ids("prompt", (0, 9), 10)
    check_token_ids("prompt", (), 10)
