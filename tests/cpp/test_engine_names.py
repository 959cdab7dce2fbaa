"""The native engine knows no family of models: what it needs to know of one, the model declares."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pocketllm_cpp import _native

CSRC = Path("pocketllm-cpp") / "csrc"
# What may be included of the models: the interface, and the configuration's limits.
INTERFACE = {"models/model.h", "models/cache_spec.h", "models/config.h"}
# Kinds of layers that belong to families. Families themselves are asked of the build.
KINDS = ("deltanet", "delta_net", "linear_attn", "mamba", "gemma", "qwen", "llama", "mistral", "deepseek", "kimi")


def engine_sources(repository: Path) -> list[Path]:
    return sorted((repository / CSRC / "engine").glob("*.[ch]*"))


def test_the_engine_names_no_family(repository: Path) -> None:
    families = {re.sub(r"[^a-z]", "", name) for name in _native.families()}
    pattern = re.compile("|".join(sorted({*KINDS, *families})), re.IGNORECASE)
    found = {
        f"{path.name}:{number}: {line.strip()}"
        for path in engine_sources(repository)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    }
    assert found == set()


def test_the_engine_includes_the_models_interface_alone(repository: Path) -> None:
    included = {
        header
        for path in engine_sources(repository)
        for header in re.findall(r'#include "(models/[^"]+)"', path.read_text())
    }
    assert included
    assert included <= INTERFACE


@pytest.mark.parametrize("text", ["// DeltaNet layers", "if (family == Family::kGemma3)"])
def test_the_pattern_finds_what_it_should(text: str) -> None:
    assert re.search("|".join(KINDS), text, re.IGNORECASE)
