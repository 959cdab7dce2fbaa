"""What a person asks first, copied from README or from the server's greeting, gets an answer worth reading."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pocketllm import LLM, EngineArgs, SamplingParams
from pocketllm.types import ModelSource
from pocketllm_server.cli import _greeting
from pocketllm_server.config.settings import ServerSettings

README = Path(__file__).parents[2] / "README.md"


def body_in(text: str) -> dict[str, object]:
    (body,) = re.findall(r"-d '(\{.*\})'", text)
    found: dict[str, object] = json.loads(body)
    return found


@pytest.mark.parametrize("backend", ["cpp", "torch"])
def test_the_embedded_model_knows(smollm2_path: Path, backend: str) -> None:
    asked = body_in(README.read_text())
    source = ModelSource(path=str(smollm2_path), name="smollm2")
    assert body_in(_greeting("http://127.0.0.1:8000", ServerSettings(), source)) == asked
    messages, max_tokens = asked["messages"], asked["max_tokens"]
    assert isinstance(messages, list)
    assert isinstance(max_tokens, int)
    with LLM(EngineArgs(model=str(smollm2_path), backend=backend, max_model_len=512)) as llm:
        (answer,) = llm.chat(messages, SamplingParams(max_tokens=max_tokens))
    assert "Rayleigh scattering" in answer.text
