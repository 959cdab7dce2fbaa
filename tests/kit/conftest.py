"""The kit's own checkpoint, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketllm.testing.toy_checkpoint import write_toy_checkpoint


@pytest.fixture(scope="session")
def toy_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_checkpoint(tmp_path_factory.mktemp("kit") / "toy")
