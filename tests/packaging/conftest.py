"""Wheels of this tree, and empty environments to install them into."""

from __future__ import annotations

import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.environments import DISTRIBUTIONS, Environment, build


@pytest.fixture(scope="session")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive of every distribution."""
    folder = tmp_path_factory.mktemp("built")
    for name in DISTRIBUTIONS:
        build(repository / name, folder, "wheel", "sdist")
    return folder


@pytest.fixture(scope="session")
def new_environment(
    repository: Path, built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Environment]:
    """Make an empty environment and install the named requirements into it."""

    def make(*requirements: str) -> Environment:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, with_pip=True)
        environment = Environment(folder, built, repository / "constraints.txt")
        environment.install(*requirements)
        return environment

    return make
