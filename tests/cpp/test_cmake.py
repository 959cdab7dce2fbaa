"""Configuring by hand: device layers that are not there, and what a build without tools is told."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CMAKE = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake") or "cmake"


def configure(repository: Path, build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [CMAKE, "-S", str(repository / "pocketllm-cpp"), "-B", str(build), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    "backend, words",
    [
        ("cuda", ("no CUDA kernels yet", "csrc/kernels/cuda/README.md", "-DPOCKET_BACKEND=cpu")),
        ("ascend", ("no Ascend kernels yet", "csrc/kernels/ascend/README.md", "-DPOCKET_BACKEND=cpu")),
        ("rocm", ("choose cpu, cuda or ascend",)),
    ],
)
def test_a_device_layer_that_is_missing_ends_the_configuration(
    repository: Path, tmp_path: Path, backend: str, words: tuple[str, ...]
) -> None:
    done = configure(repository, tmp_path / "build", f"-DPOCKET_BACKEND={backend}")
    assert done.returncode != 0
    shown = " ".join(done.stderr.split())
    for word in words:
        assert word in shown
    for name in ("cuda", "ascend"):
        assert (repository / "pocketllm-cpp" / "csrc" / "kernels" / name / "README.md").is_file()


def test_a_module_without_nanobind_says_how_to_get_it(repository: Path, tmp_path: Path) -> None:
    options = ("-DPOCKET_BUILD_PYTHON=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_nanobind=ON")
    done = configure(repository, tmp_path / "build", *options, f"-DPython_EXECUTABLE={sys.executable}")
    assert done.returncode != 0
    assert "pip install nanobind" in " ".join(done.stderr.split())


def test_every_preset_can_be_configured(repository: Path) -> None:
    folder = repository / "pocketllm-cpp"
    listed = subprocess.run(
        [CMAKE, "--list-presets"], cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    for preset in ("release", "debug", "asan-ubsan", "tsan"):
        assert f'"{preset}"' in listed.stdout
