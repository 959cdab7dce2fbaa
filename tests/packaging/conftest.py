"""Wheels of this tree, and empty environments to install them into."""

from __future__ import annotations

import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.environments import DISTRIBUTIONS, NATIVE, Environment, build, build_isolated


@pytest.fixture(scope="session")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive of every distribution."""
    folder = tmp_path_factory.mktemp("built")
    for name in DISTRIBUTIONS:
        # The native wheel is made from its archive, so that what is tested is what a person gets.
        build(repository / name, folder, *(("sdist",) if name == NATIVE else ("wheel", "sdist")))
    (archive,) = folder.glob(f"{NATIVE.replace('-', '_')}-*.tar.gz")
    build_isolated(archive, folder, repository / "constraints.txt")
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
