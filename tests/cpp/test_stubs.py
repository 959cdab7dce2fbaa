"""The stubs of the extension module are what its generator says today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_committed_stubs_are_the_generated_ones(repository: Path, tmp_path: Path) -> None:
    made = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "pocketllm_cpp._native", "-o", str(made)]
    subprocess.run(command, check=True, timeout=120)
    committed = repository / "pocketllm-cpp" / "src" / "pocketllm_cpp" / "_native.pyi"
    assert committed.read_text() == made.read_text(), f"run: {' '.join(['python', *command[1:-1], str(committed)])}"
