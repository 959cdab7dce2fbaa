"""The soak of ``tests/soak/server.py``, small: the same clients and the same checks, on fewer requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_short_soak_gives_everything_back(repository: Path) -> None:
    numbers = ("--warm-up", "1500", "--requests", "500", "--connections", "64")
    command = [sys.executable, str(repository / "tests/soak/server.py"), *numbers]
    soak = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert soak.returncode == 0, soak.stdout + soak.stderr
    assert "after 500 requests" in soak.stdout
    assert soak.stdout.endswith("everything was given back\n")
