"""The rooms of each distribution: no circle of imports, between modules or between rooms, and no arrow that runs up.

A room is a folder of a package's source, or a module at its root. Every import counts, also one inside a function and
one for type checkers alone: a reader has to follow it all the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.packaging.environments import DISTRIBUTIONS

Graph = dict[str, set[str]]

ROOMS: Mapping[str, tuple[str, ...]] = {
    "pocketllm": (
        # What a request, an engine and an error are, and what reads a checkpoint.
        "errors", "stages", "hook_markers", "prompt_spec", "sampling_params", "engine_env", "engine_args", "types",
        "checkpoint",
        # What is made of text and requests, without an engine.
        "text", "structured", "fields", "protocol", "prompt",
        # What authors build on, and how it is found.
        "engine", "hookspecs", "backend_parts", "plugins", "model_sources",
        # The engine's home, and what people use.
        "host", "async_stream", "llm", "async_llm", "cli", "testing", "__main__",
    ),
    "pocketllm_server": (
        "config", "wire", "transport", "logs", "metrics", "models", "service", "answers", "layers", "routes", "app",
        "serve", "cli", "plugin",
    ),
    "pocketllm_torch": (
        "device", "options", "card", "kernels", "layers", "configs", "weights", "models", "engine", "plugin",
    ),
    "pocketllm_cpp": (
        "_native", "options", "kv_cache_types", "card", "constraints", "sampling", "batches", "loading", "engine",
        "opening", "tokens", "plugin",
    ),
    "pocketllm_echo": ("engine",),
}  # fmt: skip
"""Package -> its rooms, each above those it may import."""


def _graph(source: Path, package: str) -> Graph:
    """Module -> the modules of the same package that it imports."""
    # A module of C++ stands there as its stub.
    paths = {_name(path, source): path for path in (source / package).rglob("*.py*") if path.suffix in (".py", ".pyi")}
    graph: Graph = {}
    for name, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        graph[name] = {found for each in _imports(tree) if (found := _module(each, paths)) is not None} - {name}
    return graph


def _name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            # What is imported is a module of its own or something in one.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module(imported: str, known: Mapping[str, object]) -> str | None:
    while imported not in known and "." in imported:
        imported = imported.rpartition(".")[0]
    return imported if imported in known else None


def _rooms(graph: Graph) -> Graph:
    """The same between rooms. The package's own module is no room: it only names what a user may import."""
    rooms: Graph = {}
    for module, imported in graph.items():
        if "." in module:
            rooms.setdefault(_room(module), set()).update(_room(each) for each in imported if "." in each)
    return {room: imported - {room} for room, imported in rooms.items()}


def _room(module: str) -> str:
    return module.split(".")[1]


def _circle(graph: Graph) -> list[str]:
    """One circle of the graph, each importing the next; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return []


def _upward(rooms: Graph, order: tuple[str, ...]) -> list[str]:
    height = {room: number for number, room in enumerate(order)}
    return [
        f"{room} imports {each}, which stands above it"
        for room, imported in sorted(rooms.items())
        for each in sorted(imported)
        if height[each] > height[room]
    ]


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_no_modules_import_each_other_in_a_circle(repository: Path, folder: str) -> None:
    assert _circle(_graph(repository / folder / "src", DISTRIBUTIONS[folder])) == []


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_no_room_imports_one_above_it(repository: Path, folder: str) -> None:
    package = DISTRIBUTIONS[folder]
    rooms = _rooms(_graph(repository / folder / "src", package))
    assert _circle(rooms) == []
    assert sorted(rooms) == sorted(ROOMS[package]), "every room has its place in the order"
    assert _upward(rooms, ROOMS[package]) == []


def test_a_circle_and_an_upward_arrow_are_found(tmp_path: Path) -> None:
    sources = {
        "__init__.py": "from house.attic import window",
        "attic/__init__.py": "",
        "attic/window.py": "def open():\n    import house.cellar.lamp\n",
        "cellar/__init__.py": "",
        "cellar/lamp.py": "if TYPE_CHECKING:\n    from house.attic.window import open\n",
        "cellar/floor.py": "from house.cellar import lamp",
    }
    for name, text in sources.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = _graph(tmp_path, "house")
    assert graph["house.cellar.floor"] == {"house.cellar.lamp"}
    assert set(_circle(graph)) == {"house.attic.window", "house.cellar.lamp"}
    assert set(_circle(_rooms(graph))) == {"attic", "cellar"}
    assert _upward(_rooms(graph), ("cellar", "attic")) == ["cellar imports attic, which stands above it"]
    assert _circle({"a": {"b"}, "b": set()}) == []
