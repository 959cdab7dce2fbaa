"""What a page points at is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, anchors, files, find_file, links, pages


@pytest.mark.parametrize("page", pages(), ids=str)
def test_every_relative_link_leads_to_a_file_and_heading(page: Path) -> None:
    broken = []
    for link in links(page):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        path = Path(os.path.normpath(page.parent / target)) if target else page
        if not (REPOSITORY / path).exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", pages(), ids=str)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    assert [name for name in files(page) if find_file(page, name) is None] == []


def test_every_page_of_the_manual_is_reached_from_its_index() -> None:
    manual = {path for path in pages() if path.parts[0] == "docs"}
    index = Path("docs/index.md")
    reached, waiting = {index}, [index]
    while waiting:
        page = waiting.pop()
        targets = {Path(os.path.normpath(page.parent / link.partition("#")[0])) for link in links(page)}
        new = (targets & manual) - reached
        reached |= new
        waiting += new
    assert manual - reached == set()
