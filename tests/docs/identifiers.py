"""The public names of the product code: what the glossary's words are looked for in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tests.docs.pages import REPOSITORY

_DECLARED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', re.DOTALL)


class Name(NamedTuple):
    """``path`` is relative to the repository."""

    path: str
    name: str

    @property
    def words(self) -> tuple[str, ...]:
        return words_of(self.name)


def words_of(name: str) -> tuple[str, ...]:
    """The words of an identifier, lower case and singular: ``max_num_slots`` and ``SlotState`` both have ``slot``."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return tuple(part.lower().removesuffix("s") for part in parts)


@cache
def names() -> tuple[Name, ...]:
    """Of Python: modules, classes, functions, their parameters, and fields. Of C++: every identifier of the headers."""
    found: set[Name] = set()
    for source in (*REPOSITORY.glob("pocketllm-*/src"), *REPOSITORY.glob("plugins/*/src")):
        for path in source.rglob("*.py"):
            shown = path.relative_to(REPOSITORY).as_posix()
            found |= {Name(shown, part) for part in path.relative_to(source).with_suffix("").parts}
            found |= {Name(shown, name) for name in _python(ast.parse(path.read_text(encoding="utf-8")))}
    for path in REPOSITORY.glob("pocketllm-cpp/csrc/**/*.h"):
        shown = path.relative_to(REPOSITORY).as_posix()
        code = _COMMENT_OR_TEXT.sub(" ", path.read_text(encoding="utf-8"))
        found |= {Name(shown, name) for name in (path.stem, *re.findall(r"\b[A-Za-z_]\w*", code))}
    return tuple(sorted(found))


def _python(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _DECLARED):
            if node.name.startswith("_"):
                continue
            yield node.name
            if isinstance(node, ast.ClassDef):
                yield from _python(node)
            else:
                arguments = node.args
                yield from (each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (each.id for each in targets if isinstance(each, ast.Name) and not each.id.startswith("_"))
