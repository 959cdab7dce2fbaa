"""Vocabularies and the JSON-Schema-Test-Suite for the tests of this folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketllm.checkpoint import Tokenizer, open_checkpoint
from tests.structured.vocabularies import byte_level, sentence_piece

# The release that carries the suite the tests were written against.
SUITE_SOURCE = "jsonschema==4.26.0"
SUITE_FOLDER = "json/tests/"
DRAFTS = ("draft2020-12", "draft2019-09", "draft7", "draft6", "draft4")
_NO_NETWORK = ("Connection", "Temporary failure in name resolution", "Network is unreachable", "timed out")


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_level()


@pytest.fixture(scope="session")
def spm_tokenizer() -> Tokenizer:
    return sentence_piece()


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_path: Path) -> Tokenizer:
    return open_checkpoint(smollm2_path).tokenizer()


@pytest.fixture(scope="session")
def suite(repository: Path) -> list[dict[str, Any]]:
    """Groups of the suite: `draft`, `file`, `description`, `schema` and `tests`.

    Skips only when there is no network to fetch it with.
    """
    cache = Path(os.environ.get("POCKETLLM_TEST_CACHE") or repository / ".cache")
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / ("json-schema-test-suite-" + SUITE_SOURCE.replace("==", "-") + ".json")
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            groups = list(_groups(_download(Path(scratch))))
            whole = Path(scratch) / target.name
            whole.write_text(json.dumps(groups), encoding="utf-8")
            os.replace(whole, target)
    loaded: list[dict[str, Any]] = json.loads(target.read_text(encoding="utf-8"))
    return loaded


def _download(folder: Path) -> Path:
    name = SUITE_SOURCE.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", name, SUITE_SOURCE]
    done = subprocess.run([*command, "-d", str(folder)], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        complaint = done.stdout + done.stderr
        if any(word in complaint for word in _NO_NETWORK):
            pytest.skip(f"no network to fetch {SUITE_SOURCE} with, and nothing cached")
        pytest.fail(f"pip download {SUITE_SOURCE} failed:\n{complaint[-2000:]}")
    return next(folder.glob("*.tar.gz"))


def _groups(archive: Path) -> Iterator[dict[str, Any]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            folder, found, rest = member.name.partition("/" + SUITE_FOLDER)
            draft, _, file = rest.partition("/")
            # Formats are annotations in the suite's other folders; here they are enforced.
            if not found or draft not in DRAFTS or not file.endswith(".json") or "format/" in file:
                continue
            contents = tar.extractfile(member)
            assert contents is not None, folder
            for group in json.loads(contents.read()):
                yield {
                    "draft": draft,
                    "file": file,
                    **{key: group[key] for key in ("description", "schema", "tests")},
                }
