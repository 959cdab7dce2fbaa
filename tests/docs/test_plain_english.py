"""Sentences are said plainly: in comments, docstrings and texts of the code, and on the pages of the manual."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, pages, text

RIDDLES = {
    r"(?<![Tt]here )\b(?:is|are|was|were|be|been) no (?!longer\b|more\b|less\b|later\b)": 'say "is not a" or "has no"',
    r"\bfor ever\b": 'say "without end"',
    r"\b[Ww]hoever\b": "name them",
}
"""Pattern -> what to do instead."""

SOURCES = (
    *REPOSITORY.glob("pocketllm-*/src/**/*.py"),
    *REPOSITORY.glob("plugins/*/src/**/*.py"),
    *REPOSITORY.glob("pocketllm-cpp/csrc/**/*.h"),
    *REPOSITORY.glob("pocketllm-cpp/csrc/**/*.cpp"),
    REPOSITORY / "noxfile.py",
)


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of everything in a source file that is written for people, joined where it is wrapped."""
    source = path.read_text(encoding="utf-8")
    yield from _python(source) if path.suffix == ".py" else _cpp(source)


def _python(source: str) -> Iterator[tuple[int, str]]:
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Constant(value=str() as said):
                yield node.lineno, said
            case ast.JoinedStr(values=values):
                texts = [part.value if isinstance(part, ast.Constant) else "X" for part in values]
                yield node.lineno, "".join(map(str, texts))
                waiting += [part for part in values if not isinstance(part, ast.Constant)]
                continue
        waiting += ast.iter_child_nodes(node)
    comments = [
        (token.start[0], token.string.lstrip("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    yield from _joined(comments)


def _cpp(source: str) -> Iterator[tuple[int, str]]:
    lines = list(enumerate(source.splitlines(), start=1))
    yield from _joined([(number, line.split("//", 1)[1]) for number, line in lines if "//" in line])
    for found in re.finditer(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*', source):
        yield source.count("\n", 0, found.start()) + 1, re.sub(r'"\s*"', "", found[0])


def _joined(comments: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Comments on lines that follow each other, as one."""
    first, last, said = 0, -1, ""
    for number, comment in comments:
        if number != last + 1:
            yield first, said
            first, said = number, ""
        last, said = number, said + comment
    yield first, said


def riddles(said: str) -> list[str]:
    plain = " ".join(said.split())
    return [f"{plain[max(0, found.start() - 40) : found.end() + 40]} ({advice})"
            for pattern, advice in RIDDLES.items() for found in re.finditer(pattern, plain)]  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_source_file_has_no_riddles(path: Path) -> None:
    assert [f"line {line}: {each}" for line, said in sentences(path) for each in riddles(said)] == []


@pytest.mark.parametrize("page", pages(), ids=str)
def test_a_page_has_no_riddles(page: Path) -> None:
    assert riddles(text(page)) == []


def test_a_riddle_is_found_across_lines() -> None:
    assert riddles("this is\n    no way to say it")
    assert riddles("it is no longer so") == []
