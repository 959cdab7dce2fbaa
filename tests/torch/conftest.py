"""Tiny random Llama checkpoints, and the engine under test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.torch.driving import Driver
from tests.torch.tiny_llama import TinyLlama, write_tiny_llama


@pytest.fixture(autouse=True, scope="session")
def few_threads() -> None:
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyLlama:
    """A random Llama with its transformers twin; untied, since a random model with a tied head repeats itself."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), tie_word_embeddings=False)


@pytest.fixture
def tiny_path(tiny: TinyLlama) -> Path:
    return tiny.path


@pytest.fixture
def driver(tiny: TinyLlama) -> Iterator[Driver]:
    """The default engine on the tiny model, in float32."""
    with Driver.open(tiny.path, dtype="float32") as driver:
        yield driver
