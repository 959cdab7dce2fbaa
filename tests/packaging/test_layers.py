"""Who may import whom, read from the source of every module and every C++ file.

Core imports no runtime and no backend; backends and the server know core alone; nothing imports the server. In C++ no
include runs upwards, and the bindings alone know Python.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

from tests.packaging.environments import DISTRIBUTIONS, run

OURS = frozenset(DISTRIBUTIONS.values())
RUNTIMES = frozenset({"torch", "numpy", "triton", "transformers", "safetensors"})
# These cost tens of milliseconds each, which `import pocketllm` and `pocketllm --help` do not have.
HEAVY = frozenset({"jinja2", "llguidance", "tokenizers", "rich"})

# Folder of csrc/ -> the folders it may include besides itself.
NATIVE_LAYERS = {
    "core": set[str](),
    "kernels": {"core"},
    "models": {"core", "kernels"},
    "structured": {"core"},
    "engine": {"core", "kernels", "models", "structured"},
    "bindings": {"core", "kernels", "models", "structured", "engine", "nanobind"},
}


def _imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every absolute import of a module, as (statement, top-level package)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node, node.module.split(".")[0]


def _modules(repository: Path, folder: str) -> list[tuple[Path, ast.Module]]:
    paths = sorted((repository / folder / "src").rglob("*.py"))
    assert paths
    return [(path.relative_to(repository), ast.parse(path.read_text(encoding="utf-8"), str(path))) for path in paths]


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_no_distribution_reaches_past_core(repository: Path, folder: str) -> None:
    allowed = {"pocketllm", DISTRIBUTIONS[folder]}
    reached = [
        f"{path}:{node.lineno} imports {package}"
        for path, tree in _modules(repository, folder)
        for node, package in _imports(tree)
        if package in OURS - allowed
    ]
    assert reached == []


def test_core_and_server_import_no_runtime(repository: Path) -> None:
    reached = [
        f"{path}:{node.lineno} imports {package}"
        for folder in ("pocketllm-core", "pocketllm-server", "plugins/pocketllm-echo")
        for path, tree in _modules(repository, folder)
        for node, package in _imports(tree)
        if package in RUNTIMES
    ]
    assert reached == []


def test_the_whole_public_api_loads_no_heavy_library() -> None:
    """The functions that use them import them, or import a module that nobody else does."""
    program = f"""
import sys, pocketllm
for name in pocketllm.__all__:
    getattr(pocketllm, name)
import pocketllm.cli, pocketllm.cli.group, pocketllm.hookspecs, pocketllm.protocol, pocketllm.plugins.registry
print(sorted({set(HEAVY | RUNTIMES)!r} & set(sys.modules)))
"""
    done = run([sys.executable, "-W", "error", "-c", program], cwd=Path.cwd())
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_every_import_is_a_declared_dependency(repository: Path, folder: str) -> None:
    project = tomllib.loads((repository / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = chain.from_iterable(project.get("optional-dependencies", {}).values())
    requirements = [*project["dependencies"], *optional]
    declared = {re.split(r"[\s\[<>=!~;]", requirement)[0].lower() for requirement in requirements}
    providers = packages_distributions()
    undeclared = []
    for path, tree in _modules(repository, folder):
        for node, package in _imports(tree):
            if package in sys.stdlib_module_names or package in {DISTRIBUTIONS[folder], *OURS}:
                continue
            names = {name.lower().replace("_", "-") for name in providers.get(package, [package])}
            if not names & declared:
                undeclared.append(f"{path}:{node.lineno} imports {package}")
    assert undeclared == []


def test_every_source_folder_is_typed(repository: Path) -> None:
    for folder, package in DISTRIBUTIONS.items():
        assert (repository / folder / "src" / package / "py.typed").read_bytes() == b""


def test_the_native_backends_adapter_uses_no_token_level_class(repository: Path) -> None:
    package = repository / "pocketllm-cpp/src/pocketllm_cpp"
    reached = [
        f"{path.name} imports {node.module}"
        for path in package.glob("*.py")
        if path.name != "__init__.py"  # gives out the public names of both
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pocketllm_cpp.tokens")
    ]
    assert (package / "tokens").is_dir()
    assert reached == []


def test_no_native_folder_includes_one_above_it(repository: Path) -> None:
    sources = [path for path in (repository / "pocketllm-cpp/csrc").rglob("*") if path.suffix in (".h", ".cpp")]
    assert {path.relative_to(repository / "pocketllm-cpp/csrc").parts[0] for path in sources} == set(NATIVE_LAYERS)
    reached = []
    for path in sources:
        place = path.relative_to(repository / "pocketllm-cpp/csrc")
        folder = place.parts[0]
        for included in re.findall(r'^\s*#include\s+["<](\w+)/', path.read_text(encoding="utf-8"), re.MULTILINE):
            if included not in {folder, "sys", *NATIVE_LAYERS[folder]}:
                reached.append(f"{place} includes {included}/")
    assert reached == []
