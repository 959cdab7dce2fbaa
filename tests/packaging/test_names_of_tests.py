"""A failing test is met by its name alone, so the name is a statement and not a heading."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_MIN_WORDS = 4
_NATIVE_TEST = re.compile(r"^TEST\((\w+)\)", re.MULTILINE)


def too_short(names: list[str]) -> list[str]:
    return [name for name in names if len(name.removeprefix("test_").split("_")) < _MIN_WORDS]


def test_names_of_python_tests_have_four_words_or_more(repository: Path) -> None:
    found = {}
    for path in sorted((repository / "tests").rglob("test_*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        functions = (node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        found[str(path.relative_to(repository))] = [name for name in functions if name.startswith("test_")]
    assert sum(map(len, found.values())) > 1000
    assert {path: short for path, names in found.items() if (short := too_short(names))} == {}


def test_names_of_native_tests_have_four_words_or_more(repository: Path) -> None:
    files = sorted((repository / "tests/cpp/native").rglob("test_*.cpp"))
    found = {path.name: _NATIVE_TEST.findall(path.read_text(encoding="utf-8")) for path in files}
    assert sum(map(len, found.values())) > 100
    assert {name: short for name, names in found.items() if (short := too_short(names))} == {}
