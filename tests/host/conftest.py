"""A host over an engine whose every event the test posts itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.manual_engine import DrivenHost, ManualBackend


@pytest.fixture
def backend() -> ManualBackend:
    return ManualBackend()


@pytest.fixture
def driven(toy_path: Path, backend: ManualBackend) -> Iterator[DrivenHost]:
    with DrivenHost(toy_path, backend) as driven:
        yield driven
