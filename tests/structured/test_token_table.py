"""The table of a vocabulary is made in a thread, and the interpreter waits for that thread when it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from pocketllm.checkpoint import Tokenizer
from pocketllm.structured import token_table as module
from pocketllm.structured.token_table import TokenTable, begin_token_table, token_table
from tests.structured.vocabularies import byte_level

# Ends while the library is at work. A daemon thread that comes back from it then is unwound through foreign frames,
# which takes the process down; what a daemon thread starts is one too, unless it says otherwise.
ENDS_AT_ONCE = """
import threading
from pocketllm.structured.token_table import begin_token_table
from tests.structured.vocabularies import byte_level

class Slow:
    def __init__(self, tokenizer): self.tokenizer = tokenizer
    def __getattr__(self, name): return getattr(self.tokenizer, name)
    def all_token_bytes(self):
        import time
        time.sleep(0.5)
        print("made", flush=True)
        return self.tokenizer.all_token_bytes()

loader = threading.Thread(target=begin_token_table, args=(Slow(byte_level()),), daemon=True)
loader.start()
loader.join()
"""


def test_a_process_that_ends_at_once_waits_for_it(repository: Any) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_AT_ONCE], cwd=repository, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "made\n"


def test_whoever_asks_meanwhile_gets_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tokenizer] = []
    begun = threading.Event()

    class Counted(TokenTable):
        def __init__(self, tokenizer: Tokenizer, text_ids: Any = ()) -> None:
            made.append(tokenizer)
            begun.set()
            super().__init__(tokenizer, text_ids)

    monkeypatch.setattr(module, "TokenTable", Counted)
    tokenizer = byte_level()
    begin_token_table(tokenizer)
    assert begun.wait(10)
    assert token_table(tokenizer) is token_table(tokenizer)
    assert made == [tokenizer]
