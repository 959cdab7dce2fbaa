"""The rooms of the backend: who may import whom, and what the engine does not know."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketllm_torch.models.registry import FAMILIES

# From the ground up: a room imports those before it.
ROOMS = ("kernels", "layers", "configs", "weights", "models", "engine")
# The probe reads these without torch, so that they stand beside the rooms.
WITHOUT_TORCH = ("pocketllm_torch.models.registry", "pocketllm_torch.weights.fp8_settings")


@pytest.fixture
def source(repository: Path) -> Path:
    return repository / "pocketllm-torch" / "src" / "pocketllm_torch"


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("pocketllm_torch"):
            yield node.module


def test_no_room_imports_one_above_it(source: Path) -> None:
    upward = [
        f"{path.relative_to(source)} imports {module}"
        for height, room in enumerate(ROOMS)
        for path in sorted((source / room).rglob("*.py"))
        for module in imports(path)
        if module.split(".")[1] in ROOMS[height + 1 :] and module not in WITHOUT_TORCH
    ]
    assert upward == []


def test_no_module_imports_itself_through_others(source: Path) -> None:
    graph = {
        "pocketllm_torch." + ".".join(path.relative_to(source).with_suffix("").parts): set(_at_import(path))
        for path in sorted(source.rglob("*.py"))
    }
    reached = {name: _reach(graph, name) for name in graph}
    assert [name for name in graph if name in reached[name]] == []


def _at_import(path: Path) -> Iterator[str]:
    """What a module imports while it is imported: not in functions, and not for types alone."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph.get(waiting.pop(), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def test_the_engine_knows_no_family_by_name(source: Path) -> None:
    """Nor the mechanism of one: it makes caches from what models declare."""
    words = {*(name.split("_")[0].rstrip("0123456789") for name in FAMILIES), "delta"}
    assert "qwen" in words
    named = [
        f"{path.name}: {word}"
        for path in sorted((source / "engine").rglob("*.py"))
        for word in words
        if word in path.read_text().lower()
    ]
    assert named == []
