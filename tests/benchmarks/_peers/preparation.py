"""Gets the engines that ours is compared with, and builds them. What is there already is left as it is.

    FOLDER/llama_cpp_python-VERSION/  the sdist of llama-cpp-python: a binding, and llama.cpp's source
    FOLDER/llama-build/bin/           llama.cpp's own programs and libraries, for this machine's CPU
    FOLDER/ov/                        an environment with OpenVINO GenAI and what the binding imports
    FOLDER/bench_bandwidth            tests/cpp/native/bench_bandwidth.cpp

Needs a C++ compiler, cmake and, for the first time, a package index; llama.cpp takes some twenty minutes of one core.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

LLAMA_CPP_PYTHON = "0.3.36"
PYTHON_PACKAGES = {
    "openvino-genai": "2026.4.1.0",
    "openvino-tokenizers": "2026.4.1.0",
    # What llama-cpp-python's binding and the workers import.
    "numpy": "2.4.6",
    "diskcache": "5.6.3",
    "jinja2": "3.1.6",
    "typing-extensions": "4.16.0",
}
LLAMA_TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-server")
LLAMA_SETTINGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "GGML_NATIVE": "ON",
    # No downloads: neither by the programs nor, for the server's page, by the build.
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
}
REPOSITORY = Path(__file__).resolve().parents[3]
_INSTALLED = "import importlib.metadata as m, sys; sys.exit(any(m.version(n) != v for n, v in {packages!r}.items()))"


@dataclass(frozen=True)
class Peers:
    """Where everything is."""

    llama_source: Path
    llama_tools: Path
    python: Path
    bandwidth: Path


def prepare(folder: Path) -> Peers:
    """Make what is missing in ``folder``.

    Raises:
        SystemExit: a program that it needs is missing, or failed; its output is above.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = _llama_source(folder)
    return Peers(source, _llama_tools(folder, source), _environment(folder), _bandwidth(folder))


def _llama_source(folder: Path) -> Path:
    source = folder / f"llama_cpp_python-{LLAMA_CPP_PYTHON}"
    if not source.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            package = "llama-cpp-python"
            download = ("download", "--no-deps", "--no-binary", package, f"{package}=={LLAMA_CPP_PYTHON}")
            _run(sys.executable, "-m", "pip", *download, "--dest", scratch)
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
            # Renamed into place, so that a run that is stopped leaves nothing by halves.
            os.replace(Path(scratch) / source.name, source)
    return source


def _llama_tools(folder: Path, source: Path) -> Path:
    build = folder / "llama-build"
    if not all((build / "bin" / tool).exists() for tool in LLAMA_TOOLS):
        cmake = _program("cmake")
        # A folder that was configured before keeps its settings, and what it has compiled.
        if not (build / "build.ninja").exists():
            settings = [f"-D{name}={value}" for name, value in LLAMA_SETTINGS.items()]
            _program("ninja")
            _run(cmake, "-S", str(source / "vendor" / "llama.cpp"), "-B", str(build), "-G", "Ninja", *settings)
        _run(cmake, "--build", str(build), "--target", *LLAMA_TOOLS)
    return build / "bin"


def _environment(folder: Path) -> Path:
    # Its own environment: OpenVINO asks for versions of its own, and loads libraries that ours does without.
    python = folder / "ov" / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", "--without-pip", str(python.parents[1]))
    check = [str(python), "-c", _INSTALLED.format(packages=PYTHON_PACKAGES)]
    if subprocess.run(check, capture_output=True, check=False).returncode:
        packages = [f"{name}=={version}" for name, version in PYTHON_PACKAGES.items()]
        _run(sys.executable, "-m", "pip", "--python", str(python), "install", *packages)
    return python


def _bandwidth(folder: Path) -> Path:
    program, native = folder / "bench_bandwidth", REPOSITORY / "pocketllm-cpp" / "csrc"
    sources = [
        REPOSITORY / "tests" / "cpp" / "native" / "bench_bandwidth.cpp",
        native / "core" / "buffer.cpp",
        native / "core" / "thread_pool.cpp",
    ]
    if not program.exists() or program.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        compiler = os.environ.get("CXX") or _program("c++")
        options = ("-std=c++20", "-O3", "-march=native", "-pthread", f"-I{native}")
        _run(compiler, *options, *map(str, sources), "-o", str(program))
    return program


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not on the PATH; `nox -s benchmarks -- peers` puts it there.")
    return found


def _run(*command: str) -> None:
    print("+", *command, flush=True)
    if code := subprocess.run(command, check=False).returncode:
        raise SystemExit(f"{command[0]} ended with code {code}; its error is above.")
