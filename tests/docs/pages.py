"""The pages of the manual, and what can be checked in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent

COMPILE_ONLY = "<!-- check: compile -->"
"""On the line before a Python block that cannot run as it stands (it shows one part of a larger program)."""

_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>\w*)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_FILE = re.compile(r"`(?P<name>[\w./-]+(?:/|\.(?:py|pyi|h|cpp|md|toml|txt|cmake)))`")
_HEADING = re.compile(r"^#{1,6} (?P<title>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block. ``line`` is the number, from 1, of its first line of code."""

    page: Path
    line: int
    language: str
    code: str
    compile_only: bool


def pages() -> list[Path]:
    """The front door, the manual, and the README of every distribution, relative to the repository."""
    found = [
        REPOSITORY / "README.md",
        *REPOSITORY.glob("docs/**/*.md"),
        *REPOSITORY.glob("pocketllm-*/*.md"),
        *REPOSITORY.glob("plugins/*/*.md"),
    ]
    return sorted(path.relative_to(REPOSITORY) for path in found)


def text(page: Path) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page, in order."""
    fence, language, first, collected, before = "", "", 0, [""], ""
    for number, line in enumerate(text(page).splitlines(), start=1):
        if not fence:
            if opening := _FENCE.match(line):
                fence, language, first, collected = opening["fence"], opening["language"], number + 1, []
            elif line.strip():
                before = line.strip()
        elif line.rstrip() == fence:
            yield Block(page, first, language, "\n".join(collected) + "\n", before == COMPILE_ONLY)
            fence, before = "", ""
        else:
            collected.append(line)
    assert not fence, f"{page}: the block that begins on line {first - 1} has no end"


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^(`{3,}).*?^\1\s*$", "", text(page), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    return [match["target"] for match in _LINK.finditer(prose(page))]


def files(page: Path) -> list[str]:
    """The files and folders that the prose names as code: `tests/conftest.py`, `csrc/`."""
    return [match["name"] for match in _FILE.finditer(prose(page))]


def find_file(page: Path, name: str) -> Path | None:
    """Where a page's file is: below the repository, a distribution's source, or the page; a bare name anywhere."""
    roots = (
        REPOSITORY,
        *REPOSITORY.glob("pocketllm-*/src"),
        *REPOSITORY.glob("pocketllm-*/src/*"),
        *REPOSITORY.glob("plugins/*/src"),
        REPOSITORY / "pocketllm-cpp",
        REPOSITORY / "pocketllm-cpp" / "csrc",
        (REPOSITORY / page).parent,
    )
    found = [root / name for root in roots if (root / name).exists()]
    bare = name.rstrip("/")
    if not found and "/" not in bare:
        found = [path for root in roots[1:] for path in root.rglob(bare)]
    return found[0] if found else None


def anchors(page: Path) -> set[str]:
    """The anchors a page's headings get: lower case, punctuation gone, hyphens for spaces."""
    titles = (match["title"] for match in _HEADING.finditer(prose(page)))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
