"""A process that ends without closing anything: it ends, with the status it chose, whatever is still under way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LEAVES_A_STREAM = """
import sys
from pocketllm import LLM, SamplingParams

llm = LLM(sys.argv[1], backend=sys.argv[2], max_model_len=1024)
stream = llm.generate_stream("Once upon a time", SamplingParams(max_tokens=900, ignore_eos=True))
print(next(stream).finish_reason, flush=True)
sys.exit(7)
"""
LEAVES_WHILE_LOADING = """
import asyncio, sys
from pocketllm import AsyncLLM

async def main():
    llm = AsyncLLM(sys.argv[1], backend=sys.argv[2])
    await llm.start()

asyncio.run(main())
sys.exit(7)
"""


@pytest.mark.parametrize("backend", ["echo", "torch", "cpp"])
@pytest.mark.parametrize("script", [LEAVES_A_STREAM, LEAVES_WHILE_LOADING], ids=["in a stream", "while loading"])
def test_a_program_that_closes_nothing_ends(smollm2_path: Path, backend: str, script: str) -> None:
    command = [sys.executable, "-c", script, str(smollm2_path), backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")
