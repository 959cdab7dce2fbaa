"""Public classes say what they are."""

from __future__ import annotations

import ast

from tests.docs.pages import REPOSITORY


def test_every_public_class_has_a_docstring() -> None:
    silent = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"
        for folder in ("pocketllm-*/src", "plugins/*/src")
        for path in REPOSITORY.glob(f"{folder}/**/*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert silent == []
