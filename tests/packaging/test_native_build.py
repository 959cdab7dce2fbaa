"""The guide's manual CMake build: what a person with the tools does by hand."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.packaging.environments import SCRIPTS, run

pytestmark = pytest.mark.packaging


def check_that_sets_are_apart(build: Path) -> None:
    """What is compiled with an instruction set's options names the set: else the linker could take its copy of a
    function for code that runs on every processor. Without optimisation every function has a copy."""
    objects = {path.name: [*path.rglob("*.o")] for path in build.glob("CMakeFiles/pocket_kernels_*.dir")}
    assert objects
    assert all(objects.values())
    for folder, files in objects.items():
        name = folder.removeprefix("pocket_kernels_").removesuffix(".dir")
        if name == "scalar":  # compiled as everything else is
            continue
        for file in files:
            symbols = run(["nm", "--demangle", str(file)], cwd=build).stdout.splitlines()
            functions = [line for line in symbols if line[17:19] == "W "]
            assert functions, file
            assert [line for line in functions if f"::{name}::" not in line] == []


def test_the_manual_build_gives_a_package_in_its_build_tree(repository: Path, tmp_path: Path) -> None:
    cmake = str(SCRIPTS / "cmake")
    variables = {**os.environ, "PATH": os.pathsep.join((str(SCRIPTS), os.environ.get("PATH", os.defpath)))}
    nanobind = run([sys.executable, "-m", "nanobind", "--cmake_dir"], cwd=tmp_path).stdout.strip()
    build = tmp_path / "build"
    configure = [cmake, "-S", str(repository / "pocketllm-cpp"), "-B", str(build), "-DPOCKET_BACKEND=cpu"]
    options = ["-DPOCKET_BUILD_PYTHON=ON", f"-Dnanobind_DIR={nanobind}", f"-DPython_EXECUTABLE={sys.executable}"]
    # Whether the build works is the question here; optimising what it makes would take minutes.
    run([*configure, *options, "-DCMAKE_BUILD_TYPE=Debug"], cwd=tmp_path, env=variables)
    jobs = str(os.cpu_count() or 1)
    made = run(
        [cmake, "--build", str(build), "--target", "pocketllm_cpp", "-j", jobs],
        cwd=tmp_path,
        env=variables,
        timeout_s=3600,
    )
    assert "warning:" not in made.stdout + made.stderr
    check_that_sets_are_apart(build)
    # -S: an editable install of this tree would go before the build tree.
    paths = os.pathsep.join((str(build / "python"), str(repository / "pocketllm-core" / "src")))
    program = "import pocketllm_cpp; print(pocketllm_cpp.backend, pocketllm_cpp._native.__file__)"
    done = run([sys.executable, "-S", "-c", program], cwd=tmp_path, env={**variables, "PYTHONPATH": paths})
    backend, file = done.stdout.split()
    assert backend == "cpu"
    assert Path(file).parent == build / "python" / "pocketllm_cpp"
