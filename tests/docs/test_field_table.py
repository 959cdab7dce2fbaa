"""The manual's table of request fields is the field table."""

from __future__ import annotations

from tests.docs.field_table import table, written


def test_the_page_shows_every_field_as_it_is() -> None:
    assert written() == table(), "run `python tests/docs/field_table.py`"
