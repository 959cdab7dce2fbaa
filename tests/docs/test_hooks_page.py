"""docs/hooks.md is the reference of the hook contract: every hook, with the signature it really has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from pocketllm import hookspecs
from tests.docs.pages import text

PAGE = Path("docs/hooks.md")
SCOPES = {"Host scope": hookspecs.HostScope, "Engine scope": hookspecs.EngineScope}
HOOKS = [(heading, name) for heading, scope in SCOPES.items() for name in vars(scope) if name.startswith("pocketllm_")]


def _signature(scope: type, name: str) -> str:
    """As written in the source, without ``self``: annotations are strings, since evaluation is postponed."""
    signature = inspect.signature(getattr(scope, name))
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    assert all(parameter.default is parameter.empty for parameter in parameters)
    shown = ", ".join(f"{parameter.name}: {parameter.annotation}" for parameter in parameters)
    return f"{name}({shown}) -> {signature.return_annotation}"


@pytest.mark.parametrize(("scope", "name"), HOOKS)
def test_a_hook_is_described_under_its_scope_with_its_signature(scope: str, name: str) -> None:
    section = text(PAGE).split(f"\n## {scope}\n", 1)[1].split("\n## ", 1)[0]
    assert f"\n### {name}\n" in section
    entry = section.split(f"\n### {name}\n", 1)[1].split("\n### ", 1)[0]
    assert f"```text\n{_signature(SCOPES[scope], name)}\n```" in entry
    first_result = bool(getattr(SCOPES[scope], name).pocketllm_spec["firstresult"])
    assert ("first answer wins" in entry.lower()) == first_result


def test_the_page_invents_no_hook() -> None:
    described = re.findall(r"^### (pocketllm_\w+)$", text(PAGE), flags=re.MULTILINE)
    assert sorted(described) == sorted(name for _, name in HOOKS)


def test_the_page_names_the_contract_version() -> None:
    from pocketllm.types import CONTRACT_VERSION

    major, minor = CONTRACT_VERSION
    assert f"contract {major}.{minor}" in text(PAGE)
