"""The distributions of this tree, how to build them, and environments of their own to install them into."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(sys.executable).parent

# Folder in the tree -> name to import.
DISTRIBUTIONS = {
    "pocketllm-core": "pocketllm",
    "pocketllm-torch": "pocketllm_torch",
    "pocketllm-cpp": "pocketllm_cpp",
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


# Built by a compiler: its wheel holds a module of this platform, and takes minutes.
NATIVE = "pocketllm-cpp"


def build(source: Path, into: Path, *targets: str) -> None:
    """Build a distribution's folder with the build tools of this environment."""
    backend = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["build-backend"]
    into.mkdir(parents=True, exist_ok=True)
    for target in targets:
        program = f"import {backend} as backend; backend.build_{target}({str(into)!r})"
        run([sys.executable, "-c", program], cwd=source, timeout_s=1800)


def build_isolated(archive: Path, into: Path, constraints: Path) -> None:
    """Build a wheel from a source archive as pip does for a person: a compiler is there, other tools are fetched."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    # Neither CMake nor ninja from this environment: a person may have none.
    kept["PATH"] = os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if Path(part) != SCRIPTS)
    kept |= {"PIP_CONSTRAINT": str(constraints), "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)}
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--disable-pip-version-check", "-w", str(into)]
    run([*command, str(archive)], cwd=into, env=kept, timeout_s=3600)


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
