"""What the manual shows of the code is the code."""

from __future__ import annotations

import pytest

from tests.docs.generated import PARTS, Part


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.page}: {part.name}")
def test_a_page_shows_what_the_code_says(part: Part) -> None:
    assert part.written() == part.make(), "run `python3 -m nox -s docs -- --write`"
