"""The protocol between the benchmark and the processes it measures: one JSON object per line, a question and an answer.

Every engine lives in a process of its own from the first question to the last, so that the runs of several engines can
alternate. An engine is an object with the methods that :class:`Engine` names; :func:`serve` answers for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol


class Engine(Protocol):
    """What a worker measures. Seconds throughout; greedy, end tokens ignored."""

    def prefill(self, prompt: list[int]) -> float:
        """From handing over the prompt to its first token."""

    def decode(self, prompts: list[list[int]], count: int) -> float:
        """From the last prompt's first token until each sequence has ``count`` more."""

    def logits(self, prompt: list[int], path: str) -> None:
        """Save the logits [len(prompt), vocab] behind every token as a .npy file."""


def serve(engine: Engine, about: dict[str, Any]) -> None:
    """Answer questions from stdin until it ends. The first line out is ``about``."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what an engine prints must not look like an answer
    print(json.dumps(about), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        name, arguments = question["call"], question["arguments"]
        if name == "peak_resident_bytes":
            result: Any = peak_resident_bytes()
        else:
            result = getattr(engine, name)(*arguments)
        print(json.dumps({"result": result}), file=answers, flush=True)


def peak_resident_bytes() -> int:
    """Of this program alone: getrusage would begin with what the process held that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


class Worker:
    """The benchmark's side of one process."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parent,
        )
        self.about: dict[str, Any] = self._read()

    def call(self, name: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        return self._read()["result"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r} ended with code {self._process.wait()}; its error is above.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
