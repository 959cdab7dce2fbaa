"""Tiny checkpoints and engines over them, shared by the tests of the native engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketllm_cpp import QwenEngine, QwenEngineOptions
from tests.cpp.driving import CppDriver


@pytest.fixture
def engine(toy_path: Path) -> QwenEngine:
    """Room for four sequences in a scheduler."""
    return QwenEngine(toy_path, QwenEngineOptions(max_batch_size=4, num_threads=2), max_context=512)


@pytest.fixture
def driver(toy_path: Path) -> Iterator[CppDriver]:
    with CppDriver.open(toy_path, options={"num_threads": 2}, max_batch_size=4, max_model_len=512) as driver:
        yield driver
