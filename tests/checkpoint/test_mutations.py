"""A hostile header gets one clear error, quickly, with little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pocketllm


def test_two_thousand_mutated_headers_neither_crash_nor_hang_nor_take_200_mb(repository: Path) -> None:
    # In a process of its own, so that its peak memory is this work's and nothing else's.
    sources = str(Path(pocketllm.__file__).parent.parent)
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            str(repository / "tests/fuzz/headers.py"),
            "--count",
            "2000",
            "--seed",
            "20260",
        ],
        env={**os.environ, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["tried"] == 2000
    # The mutations must be neither all harmless nor all fatal at the first byte.
    assert 20 < report["opened"] < 1500
    assert report["slowest_s"] < 1.0
    assert report["peak_bytes"] < 200 << 20
