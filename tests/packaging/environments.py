"""The distributions of this tree, how to build them, and environments of their own to install them into."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

# Folder in the tree -> name to import.
DISTRIBUTIONS = {
    "pocketllm-core": "pocketllm",
    "pocketllm-torch": "pocketllm_torch",
    "pocketllm-server": "pocketllm_server",
    "plugins/pocketllm-echo": "pocketllm_echo",
}


def run(
    command: list[str], *, cwd: Path, env: Mapping[str, str] | None = None, check: bool = True, timeout_s: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a program and return it with its output; with `check`, a failure shows that output."""
    done = subprocess.run(
        command, cwd=cwd, env=env, text=True, capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL
    )
    if check and done.returncode != 0:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)
    return done


def build(source: Path, into: Path, *targets: str) -> None:
    """Build a distribution's folder with the build tools of this environment."""
    options = [part for target in targets for part in ("--target", target)]
    run([sys.executable, "-m", "hatchling", "build", *options, "--directory", str(into)], cwd=source)


@dataclass(frozen=True)
class Environment:
    """An environment of its own, outside the source tree, that knows the built wheels."""

    folder: Path
    wheels: Path
    constraints: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def script(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def variables(self, **extra: str) -> dict[str, str]:
        """The variables a person in a new shell would have: nothing of this run's Python or settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "POCKETLLM_"))}
        kept["PATH"] = os.pathsep.join((str(self.folder / "bin"), kept.get("PATH", os.defpath)))
        kept.pop("VIRTUAL_ENV", None)
        return {**kept, **extra}

    def run(self, *command: str, check: bool = True, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        return run(list(command), cwd=self.folder, env=self.variables(), check=check, timeout_s=timeout_s)

    def install(self, *arguments: str) -> None:
        """`pip install`, with the built wheels as one more place to find packages."""
        options = ["--quiet", "--disable-pip-version-check", "--constraint", str(self.constraints)]
        self.run(
            self.python, "-m", "pip", "install", *options, "--find-links", str(self.wheels), *arguments, timeout_s=900
        )
