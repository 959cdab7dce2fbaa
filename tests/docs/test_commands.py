"""The commands that pages show exist."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, blocks, pages, text


def _sessions() -> dict[str, str | None]:
    """The nox sessions and their docstrings, read without nox."""
    tree = ast.parse((REPOSITORY / "noxfile.py").read_text(encoding="utf-8"))
    return {
        node.name: ast.get_docstring(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any("nox.session" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def test_every_developer_command_is_described() -> None:
    sessions = _sessions()
    wanted = {"serve", "tests", "lint", "types", "kit", "packaging", "docs", "fuzz", "soak", "benchmarks"}
    assert wanted <= set(sessions)
    assert [name for name, description in sessions.items() if not description] == []


def test_every_session_that_a_page_names_exists() -> None:
    named = {(page, name) for page in pages() for name in re.findall(r"\bnox -s ([\w-]+)", text(page))}
    assert {page for page, _ in named} >= {Path("README.md")}
    assert {(page, name) for page, name in named if name not in _sessions()} == set()


def test_the_two_commands_of_the_front_door() -> None:
    front = text(Path("README.md"))
    for session in ("serve", "tests"):
        assert f"python3 -m pip install nox && python3 -m nox -s {session}\n" in front


def _pocketllm_lines() -> list[tuple[Path, list[str]]]:
    found = []
    for page in pages():
        for block in blocks(page):
            if block.language == "console":
                lines = block.code.replace("\\\n", " ").splitlines()
                words = [shlex.split(line) for line in lines if line.startswith("pocketllm ")]
                found += [(page, line) for line in words]
    return found


@pytest.mark.parametrize(
    ("page", "words"), [pytest.param(page, words, id=" ".join(words[:2])) for page, words in _pocketllm_lines()]
)
def test_a_pocketllm_command_has_the_options_shown(page: Path, words: list[str]) -> None:
    import click

    from pocketllm.cli.group import program

    command = program.get_command(click.Context(program), words[1])
    assert command is not None, f"{page} shows {' '.join(words)}"
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    shown = {word.split("=")[0] for word in words[2:] if word.startswith("-") and len(word) > 1}
    assert shown - options - {"--help"} == set()
