"""What is in a built wheel, and what its metadata says."""

from __future__ import annotations

import tarfile
import zipfile
from configparser import ConfigParser
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.packaging.environments import DISTRIBUTIONS, NATIVE, build

pytestmark = pytest.mark.packaging
NAMES = [Path(folder).name for folder in DISTRIBUTIONS]
IMPORTS = dict(zip(NAMES, DISTRIBUTIONS.values(), strict=True))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wheel(built: Path, name: str) -> zipfile.ZipFile:
    (path,) = built.glob(f"{name.replace('-', '_')}-*.whl")
    return zipfile.ZipFile(path)


def _information(wheel: zipfile.ZipFile, file: str) -> str:
    (entry,) = (entry for entry in wheel.namelist() if entry.endswith(f".dist-info/{file}"))
    return wheel.read(entry).decode()


def _metadata(wheel: zipfile.ZipFile) -> Message:
    return Parser().parsestr(_information(wheel, "METADATA"))


def test_a_wheel_holds_its_package_its_licence_and_nothing_else(wheel: zipfile.ZipFile, name: str) -> None:
    entries = wheel.namelist()
    assert f"{IMPORTS[name]}/py.typed" in entries
    assert f"{IMPORTS[name]}/__init__.py" in entries
    assert any(entry.endswith(".dist-info/licenses/LICENSE") for entry in entries)
    assert {entry.split("/")[0] for entry in entries if ".dist-info/" not in entry} == {IMPORTS[name]}
    assert [entry for entry in entries if entry.endswith((".pyc", "conftest.py", "~"))] == []


def test_every_source_file_is_in_the_wheel(wheel: zipfile.ZipFile, name: str, repository: Path) -> None:
    (folder,) = (folder for folder in DISTRIBUTIONS if Path(folder).name == name)
    source = repository / folder / "src"
    wanted = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    held = {entry for entry in wheel.namelist() if ".dist-info/" not in entry}
    if name == NATIVE:
        (module,) = (entry for entry in held if entry.startswith("pocketllm_cpp/_native.") and entry.endswith(".so"))
        held.remove(module)
    assert held == wanted


def test_the_metadata_agrees_across_distributions(wheel: zipfile.ZipFile, name: str) -> None:
    metadata = _metadata(wheel)
    assert metadata["Name"] == name
    assert metadata["Version"] == "0.1.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert len(str(metadata.get_payload())) > 400, "the README is the page people see"


def test_every_entry_point_names_a_module_of_its_own_wheel(wheel: zipfile.ZipFile) -> None:
    points = ConfigParser(delimiters="=")
    points.read_string(_information(wheel, "entry_points.txt"))
    modules = {entry.removesuffix(".py").removesuffix("/__init__") for entry in wheel.namelist()}
    targets = [target.split(":")[0] for group in points.sections() for _, target in points.items(group)]
    assert targets
    assert [target for target in targets if target.replace(".", "/") not in modules] == []


def test_backends_and_server_ask_for_core_alone(wheel: zipfile.ZipFile, name: str) -> None:
    required = {
        line.split(";")[0].strip() for line in _metadata(wheel).get_all("Requires-Dist", []) if "extra" not in line
    }
    ours = {requirement for requirement in required if requirement.startswith("pocketllm")}
    assert ours == (set() if name == "pocketllm-core" else {"pocketllm-core<0.2,>=0.1"})


def test_a_source_archive_builds_the_same_wheel(built: Path, wheel: zipfile.ZipFile, name: str, tmp_path: Path) -> None:
    if name == NATIVE:
        return  # its wheel is the one that the archive built
    (archive,) = built.glob(f"{name.replace('-', '_')}-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build(source, tmp_path / "again", "wheel")
    (again,) = (tmp_path / "again").glob("*.whl")
    with zipfile.ZipFile(again) as other:
        assert sorted(other.namelist()) == sorted(wheel.namelist())


def test_the_licence_is_one_text(repository: Path) -> None:
    text = (repository / "LICENSE").read_bytes()
    assert b"Apache License" in text
    assert [folder for folder in DISTRIBUTIONS if (repository / folder / "LICENSE").read_bytes() != text] == []
