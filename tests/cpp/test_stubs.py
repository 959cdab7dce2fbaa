"""The stubs of the extension module are what its generator says today, and everything public says what it does."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pocketllm_cpp


def test_the_committed_stubs_are_the_generated_ones(repository: Path, tmp_path: Path) -> None:
    made = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "pocketllm_cpp._native", "-o", str(made)]
    subprocess.run(command, check=True, timeout=120)
    committed = repository / "pocketllm-cpp" / "src" / "pocketllm_cpp" / "_native.pyi"
    assert committed.read_text() == made.read_text(), f"run: {' '.join(['python', *command[1:-1], str(committed)])}"


def test_every_function_class_and_property_of_the_stubs_has_a_docstring(repository: Path) -> None:
    tree = ast.parse((repository / "pocketllm-cpp/src/pocketllm_cpp/_native.pyi").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = [(tree, node) for node in tree.body if isinstance(node, ast.FunctionDef)]
    members = [(owner, node) for owner in classes for node in owner.body if isinstance(node, ast.FunctionDef)]
    # A setter shares its property's; a class's docstring may speak for its constructor.
    bare = [
        f"{getattr(owner, 'name', '')}.{node.name}"
        for owner, node in functions + members
        if not ast.get_docstring(node) and node.name != "__init__" and not _is_setter(node)
    ]
    assert bare + [node.name for node in classes if not ast.get_docstring(node)] == []


def _is_setter(node: ast.FunctionDef) -> bool:
    return any(isinstance(mark, ast.Attribute) and mark.attr == "setter" for mark in node.decorator_list)


def test_every_public_class_function_and_method_has_a_docstring() -> None:
    assert [name for name, value in _public() if not inspect.getdoc(value)] == []


def _public() -> Iterator[tuple[str, Any]]:
    for name in pocketllm_cpp.__all__:
        value = getattr(pocketllm_cpp, name)
        if not callable(value):
            continue
        yield name, value
        if inspect.isclass(value):
            for member in (each for each in dir(value) if not each.startswith("_")):
                held = inspect.getattr_static(value, member)
                if callable(held) or isinstance(held, property):
                    yield f"{name}.{member}", held
