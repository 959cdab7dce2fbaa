"""The two backends against each other, all in float32: the same greedy tokens and log probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cpp.driving import CppDriver
from tests.cpp.tiny_checkpoints import FAMILIES, random_ids, write_fp8_twin, write_gguf_twin, write_tiny
from tests.torch.driving import Driver, Stream

GENERATED = 16
TINY_TOLERANCE = 1e-4
REAL_TOLERANCE = 1e-3
SMOLLM2_PROMPT = [504, 3575, 282, 4649, 314]
GEMMA3_PROMPT = [2, 818, 5279, 529, 7001, 563]


def run(driver: type[Driver], path: Path, ids: list[int]) -> Stream:
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "max_batch_size": 2}
    if driver is CppDriver:
        settings["kv_cache_dtype"] = "f32"
    with driver.open(path, options={"num_threads": 2}, **settings) as opened:
        return opened.run(ids, max_tokens=GENERATED, logprobs=True, top_logprobs=3, prompt_logprobs=True)


def compare(path: Path, ids: list[int], tolerance: float) -> None:
    native, reference = run(CppDriver, path, ids), run(Driver, path, ids)
    assert native.tokens == reference.tokens
    assert len(native.tokens) == GENERATED
    assert native.prompt is not None
    assert reference.prompt is not None
    ours = native.prompt.logprobs + native.logprobs
    theirs = reference.prompt.logprobs + reference.logprobs
    assert len(ours) == len(theirs) == len(ids) - 1 + GENERATED
    for mine, other in zip(ours, theirs, strict=True):
        assert abs(mine.logprob - other.logprob) < tolerance
        for (_, best), (_, expected) in zip(mine.top, other.top, strict=True):
            assert abs(best - expected) < tolerance


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_on_every_tiny_family_in_both_formats(family: str, tmp_path: Path) -> None:
    tiny = write_tiny(family, tmp_path / "hf")
    twin = write_gguf_twin(tiny, tmp_path / "twin.gguf")
    for path in (tiny.path, twin.path):
        compare(path, random_ids(70, 1), TINY_TOLERANCE)


@pytest.mark.parametrize("family", ["llama", "qwen35", "qwen35moe"])
def test_both_engines_agree_on_fp8_checkpoints(family: str, tmp_path: Path) -> None:
    twin = write_fp8_twin(write_tiny(family, tmp_path / "hf"), tmp_path / "fp8")
    compare(twin.path, random_ids(70, 1), TINY_TOLERANCE)


def test_both_engines_agree_on_smollm2(smollm2_path: Path) -> None:
    compare(smollm2_path, SMOLLM2_PROMPT, REAL_TOLERANCE)


def test_both_engines_agree_on_gemma3(gemma3_path: Path) -> None:
    compare(gemma3_path, GEMMA3_PROMPT, REAL_TOLERANCE)
