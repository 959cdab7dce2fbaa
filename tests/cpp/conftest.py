"""Tiny checkpoints and engines over them, shared by the tests of the native engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketllm.testing.toy_checkpoint import write_toy_checkpoint
from pocketllm_cpp import QwenEngine, QwenEngineOptions
from tests.cpp.driving import CppDriver


@pytest.fixture(scope="session")
def toy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The conformance kit's tiny random Llama: 2048 positions, 288 or so tokens, two ids that end a sequence."""
    return write_toy_checkpoint(tmp_path_factory.mktemp("cpp") / "toy")


@pytest.fixture
def engine(toy_path: Path) -> QwenEngine:
    """Room for four sequences in a scheduler."""
    return QwenEngine(toy_path, QwenEngineOptions(max_batch_size=4, num_threads=2), max_context=512)


@pytest.fixture
def driver(toy_path: Path) -> Iterator[CppDriver]:
    with CppDriver.open(toy_path, options={"num_threads": 2}, max_batch_size=4, max_model_len=512) as driver:
        yield driver
