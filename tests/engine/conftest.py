"""A host over an engine whose every event the test posts itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketllm.testing.toy_checkpoint import write_toy_checkpoint
from tests.engine.manual_engine import DrivenHost, ManualBackend


@pytest.fixture(scope="session")
def toy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kit's tiny checkpoint: a byte-level tokenizer that encodes any text."""
    return write_toy_checkpoint(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def backend() -> ManualBackend:
    return ManualBackend()


@pytest.fixture
def driven(toy_path: Path, backend: ManualBackend) -> Iterator[DrivenHost]:
    with DrivenHost(toy_path, backend) as driven:
        yield driven
