"""`pocketllm serve --backend cpp` beside llama-server: streaming completions over loopback, engines taking turns.

    nox -s benchmarks -- peers --serving

Every stream sends a prompt of its own (no prefix is shared), reads its answer to the end and keeps its connection. Per
number of streams: aggregate generated tokens per second, time to the first token, time between tokens (median and 99th
percentile) and the CPU seconds of the client. At the end: the CPU time each idle server takes, and what our engine
gives without the server, from the same prompts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ours import Ours
from stream_client import completion_body, read_streams

STREAMS = (1, 4, 8, 16)
NUM_REQUESTS = 16
PROMPT_TOKENS = 128
MAX_TOKENS = 64
START_TIMEOUT_S = 120.0
IDLE_S = 5.0


@dataclass(frozen=True)
class Run:
    """What one load showed. Times in seconds."""

    tokens_per_s: float
    first_s: float
    between_s: float
    between_p99_s: float
    client_cpu_s: float


def load(port: int, prompts: list[list[int]], num_streams: int) -> Run:
    bodies = [completion_body(prompt, MAX_TOKENS) for prompt in prompts]
    cpu, start = time.process_time(), time.perf_counter()
    streams = read_streams(port, bodies, num_streams)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    between = sorted(late - early for moments in streams for early, late in itertools.pairwise(moments))
    return Run(
        len(prompts) * MAX_TOKENS / seconds,
        statistics.median(moments[0] for moments in streams),
        between[len(between) // 2],
        between[int(len(between) * 0.99)],
        cpu,
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Server:
    """A server process; ``probe`` is the path that answers 200 when it is ready."""

    def __init__(self, name: str, command: Callable[[int], list[str]], probe: str) -> None:
        self.name = name
        self.port = free_port()
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(command(self.port), stdout=log, stderr=log)
            self._wait(probe, log)

    def _wait(self, probe: str, log: IO[bytes]) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{probe}", timeout=5):
                    return
            except (urllib.error.URLError, OSError) as error:
                if self._process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise SystemExit(
                        f"{self.name} did not start: {error}\n{log.read().decode(errors='replace')}"
                    ) from error
                time.sleep(0.2)

    def cpu_s(self) -> float:
        """CPU seconds of the process so far, user and system."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def engine_alone(engine: Ours, prompts: list[list[int]], num_streams: int) -> float:
    """Tokens per second of the same load handed to the engine in this process."""
    return len(prompts) * MAX_TOKENS / engine.keep_busy(prompts, num_streams, MAX_TOKENS)


def spread(values: list[float], scale: float = 1.0, digits: int = 0) -> str:
    low, middle, high = (value * scale for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--llama-tools", type=Path, help="the folder with llama-server and its libraries; ours alone when left out"
    )
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    parser.add_argument("--smollm2", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    model, threads = str(options.smollm2.resolve()), str(options.threads)

    def ours(port: int) -> list[str]:
        command = [sys.executable, "-m", "pocketllm", "serve", model, "--backend", "cpp", "--port", str(port)]
        command += ["--backend-option", f"num_threads={options.threads}", "--backend-option", "prefix_cache=false"]
        return [*command, "--max-model-len", "2048", "--max-batch-size", "16"]

    def llama(port: int) -> list[str]:
        command = [str(options.llama_tools / "llama-server"), "-m", model, "-t", threads, "-tb", threads, "-c", "8192"]
        return [*command, "-np", "16", "--port", str(port), "--no-webui", "--no-cache-prompt"]

    servers = [Server("pocketllm serve", ours, "/ready")]
    if options.llama_tools is not None:
        servers.append(Server("llama-server", llama, "/health"))
    engine = Ours(model, options.threads)
    alone: dict[int, list[float]] = {}
    runs: dict[tuple[str, int], list[Run]] = {}
    for repeat in range(-1, options.repeats):  # the first round warms up
        for num_streams in options.streams:
            dice = random.Random(f"{repeat} {num_streams}")
            prompts = [[dice.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_REQUESTS)]
            turns: list[Server | None] = [*servers, None]
            # Half of the repeats go backwards: what drifts during a run then favours nobody.
            for server in reversed(turns) if repeat % 2 else turns:
                if server is None:
                    speed = engine_alone(engine, prompts, num_streams)
                    if repeat >= 0:
                        alone.setdefault(num_streams, []).append(speed)
                else:
                    run = load(server.port, prompts, num_streams)
                    if repeat >= 0:
                        runs.setdefault((server.name, num_streams), []).append(run)
    print(f"{options.threads} threads, {options.repeats} alternating repeats: median (smallest to largest)\n")
    beside = "engine alone tokens/s | served of alone, pairs"
    print(f"| server | streams | tokens/s | first token ms | between ms | p99 ms | client CPU s | {beside} |")
    print("|---" * 9 + "|")
    for (name, num_streams), found in runs.items():
        mine = "| "
        if name == "pocketllm serve":
            pairs = zip(found, alone[num_streams], strict=True)
            ratios = [run.tokens_per_s / speed for run, speed in pairs]
            mine = f"{spread(alone[num_streams])} | {spread(ratios, 100)} %"
        print(
            f"| {name} | {num_streams} | {spread([run.tokens_per_s for run in found])} "
            f"| {spread([run.first_s for run in found], 1e3)} | {spread([run.between_s for run in found], 1e3, 1)} "
            f"| {spread([run.between_p99_s for run in found], 1e3, 1)} "
            f"| {spread([run.client_cpu_s for run in found], 1, 2)} | {mine} |"
        )
    for server in servers:
        before = server.cpu_s()
        time.sleep(IDLE_S)
        print(f"\n{server.name} idle: {(server.cpu_s() - before) / IDLE_S:.2%} of one core")
        server.close()


if __name__ == "__main__":
    main()
