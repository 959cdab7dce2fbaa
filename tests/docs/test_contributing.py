"""docs/contributing.md: the map has the rooms that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, text

PAGE = Path("docs/contributing.md")
SOURCES = (".py", ".h", ".cpp")
ROOTS = (
    *sorted(REPOSITORY.glob("pocketllm-*/src/*")),
    REPOSITORY / "pocketllm-cpp" / "csrc",
    *sorted(REPOSITORY.glob("plugins/*/src/*")),
)


def rooms_on_the_map(root: str) -> dict[str, list[str]]:
    """Folder -> the folders of its tests."""
    section = text(PAGE).split(f"\n### `{root}`\n", 1)[1].split("\n#", 1)[0]
    rows = re.findall(r"^\| `([\w./]+)/` \| [^|]+ \| ([^|]+) \|$", section, re.MULTILINE)
    return {folder: re.findall(r"`([\w./]+)/`", tests) for folder, tests in rows}


def rooms(root: Path) -> set[str]:
    """The folders that hold a source file, relative to their root."""
    found = {path.parent for path in root.rglob("*") if path.suffix in SOURCES and path.name != "__init__.py"}
    return {folder.relative_to(root).as_posix() for folder in found}


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.relative_to(REPOSITORY).as_posix())
def test_the_map_has_every_room_and_no_other(root: Path) -> None:
    assert set(rooms_on_the_map(root.relative_to(REPOSITORY).as_posix())) == rooms(root)


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.relative_to(REPOSITORY).as_posix())
def test_a_room_has_tests(root: Path) -> None:
    named = rooms_on_the_map(root.relative_to(REPOSITORY).as_posix())
    assert [folder for folder, tests in named.items() if not tests] == []
    assert [each for tests in named.values() for each in tests if not (REPOSITORY / each).is_dir()] == []


def test_the_page_tells_what_ci_runs() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    sessions = dict.fromkeys(re.findall(r"nox -s (\w+)", script))
    assert list(sessions) == ["packaging", "fuzz", "lesser_cpu", "tests"], "docs/contributing.md says what CI runs"
