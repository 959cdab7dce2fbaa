"""Our native engine beside llama.cpp and OpenVINO GenAI, in one run, alternating, with the quality of each.

    nox -s benchmarks -- peers

prepares the peers and runs this program with their places; see preparation.py.

On SmolLM2-135M: Q4_1 (the published file) and Q8_0 (requantised by llama.cpp) for ours and llama.cpp, Q8_0 for
OpenVINO, whose import of the Q4_1 file ruins the model. On Gemma 3 270M: Q4_K_M for ours and llama.cpp. Every figure is
the median of the repeats with the smallest and largest; engines take turns within a repeat, so the machine's moods hit
all alike.

Speed of llama.cpp: llama-bench and llama-batched-bench, the project's own programs. Load time and peak memory of all:
in a new Python process per repeat, which loads the model, takes in the longest prompt and decodes one sequence; the
time counts from before the engine's import. Quality: mean KL divergence and top-1 agreement with the float32 run on the
dequantised weights, over the first 400 tokens of english.txt. Bandwidth at decode 1: the bytes of weights that a token
needs times tokens per second; as a share of what all threads read an array of 1 GiB with in this run, which is memory,
and one as large as the weights, which the last cache of some machines holds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from quality import NUM_TOKENS, Array, divergence, fixed_text, reference_logits
from worker import Worker

FOLDER = Path(__file__).parent
PREFILLS = (128, 512)
NUM_DECODED = 128
BATCH = 8
NUM_BATCH_DECODED = 64
BATCH_PROMPT = 16

Measures = dict[str, Callable[[random.Random], float]]
"""Columns of the table, and what returns one's tokens per second."""


@dataclass
class Contestant:
    """One engine on one file. ``start`` opens it in a new process; ``worker`` is the one that lasts."""

    name: str
    model: Path
    start: Callable[[], Worker]
    worker: Worker
    measures: Measures
    figures: dict[str, list[float]] = field(default_factory=dict)
    loads_s: list[float] = field(default_factory=list)
    peaks_bytes: list[int] = field(default_factory=list)
    quality: tuple[float, float] = (float("nan"), float("nan"))


def tokens(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(1000, 40000) for _ in range(count)]


def by_worker(worker: Worker) -> Measures:
    """The measures of an engine that answers for itself."""

    def prefill(length: int) -> Callable[[random.Random], float]:
        return lambda dice: length / worker.call("prefill", tokens(dice, length))

    measures = {f"prefill {length}": prefill(length) for length in PREFILLS}
    measures["decode 1"] = lambda dice: NUM_DECODED / worker.call("decode", [tokens(dice, 16)], NUM_DECODED)
    measures[f"decode {BATCH}"] = lambda dice: (
        BATCH
        * NUM_BATCH_DECODED
        / worker.call("decode", [tokens(dice, BATCH_PROMPT) for _ in range(BATCH)], NUM_BATCH_DECODED)
    )
    return measures


def by_llama_bench(tools: Path, model: Path, num_threads: int) -> Measures:
    """The measures that llama.cpp's own programs take."""

    def bench(*arguments: str) -> float:
        command = [str(tools / "llama-bench"), "-m", str(model), "-t", str(num_threads), "-r", "1", "-o", "json"]
        output = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout
        (row,) = json.loads(output)
        return float(row["avg_ts"])

    def batched(_: random.Random) -> float:
        command = [
            str(tools / "llama-batched-bench"),
            *("-m", str(model), "-c", "4096", "-b", "2048", "-ub", "512", "-npp", str(BATCH_PROMPT)),
            *("-ntg", str(NUM_BATCH_DECODED), "-npl", str(BATCH), "-t", str(num_threads), "-tb", str(num_threads)),
            *("--output-format", "jsonl"),
        ]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return float(rows[-1]["speed_tg"])

    def prefill(length: int) -> Callable[[random.Random], float]:
        return lambda dice: bench("-p", str(length), "-n", "0")

    measures = {f"prefill {length}": prefill(length) for length in PREFILLS}
    measures["decode 1"] = lambda dice: bench("-p", "0", "-n", str(NUM_DECODED))
    measures[f"decode {BATCH}"] = batched
    return measures


def measure(contestants: list[Contestant], repeats: int) -> None:
    for repeat in range(-1, repeats):  # the first round warms up
        for column in contestants[0].measures:
            for contestant in contestants:
                speed = contestant.measures[column](random.Random(f"{repeat} {column}"))
                if repeat >= 0:
                    contestant.figures.setdefault(column, []).append(speed)
        for contestant in contestants:
            load_s, peak_bytes = load_figures(contestant.start)
            if repeat >= 0:
                contestant.loads_s.append(load_s)
                contestant.peaks_bytes.append(peak_bytes)


def load_figures(start: Callable[[], Worker]) -> tuple[float, int]:
    """Load seconds and peak resident bytes of a new process that does the same for every engine."""
    worker, dice = start(), random.Random("load")
    worker.call("prefill", tokens(dice, max(PREFILLS)))
    worker.call("decode", [tokens(dice, BATCH_PROMPT)], BATCH_PROMPT)
    peak_bytes = int(worker.call("peak_resident_bytes"))
    worker.close()
    return float(worker.about["load_s"]), peak_bytes


def judge(contestants: list[Contestant], scratch: Path) -> None:
    """Fill in quality."""
    from pocketllm.checkpoint import open_checkpoint

    references: dict[Path, tuple[list[int], Array]] = {}
    for contestant in contestants:
        source = contestant.model
        if source not in references:
            prompt = list(open_checkpoint(source).tokenizer().encode(fixed_text()))[:NUM_TOKENS]
            references[source] = (prompt, reference_logits(source, prompt))
        prompt, reference = references[source]
        path = scratch / "logits.npy"
        contestant.worker.call("logits", prompt, str(path))
        contestant.quality = divergence(reference, np.load(path))


def bandwidth_bytes_per_s(program: Path, num_threads: int, num_bytes: int) -> float:
    """What an array of ``num_bytes`` is read with: memory's bandwidth, or the last cache's when it fits there."""
    command = [str(program), str(num_threads), str(-(-num_bytes // 2**20))]
    return max(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3))


def spread(values: list[float], digits: int = 0) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def report(contestants: list[Contestant], bandwidth_of: Callable[[int], float]) -> None:
    memory = bandwidth_of(2**30)
    print(f"Read bandwidth of an array of 1 GiB: {memory / 1e9:.1f} GB/s\n")
    columns = list(contestants[0].measures)
    print(
        "| engine | KL | top-1 | "
        + " | ".join(columns)
        + " | load s | peak MB | at decode 1, GB/s, of 1 GiB's, of as much's |"
    )
    print("|---" * (len(columns) + 6) + "|")
    for contestant in contestants:
        cells = [spread(contestant.figures[column]) for column in columns]
        weights = weight_bytes_per_token(contestant.model)
        rate = statistics.median(contestant.figures["decode 1"]) * weights
        shares = f"{rate / 1e9:.1f}, {rate / memory:.0%}, {rate / bandwidth_of(weights):.0%}"
        kl, top1 = contestant.quality
        loads = spread(contestant.loads_s, digits=2)
        peaks = spread([peak / 1e6 for peak in contestant.peaks_bytes])
        print(
            f"| {contestant.name} | {kl:.2e} | {top1:.1%} | {' | '.join(cells)} | {loads} | {peaks} | {shares} |",
            flush=True,
        )
    print()


def weight_bytes_per_token(model: Path) -> int:
    """Stored bytes that one token needs: every tensor once; a tied embedding is the head."""
    from pocketllm.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(model)
    untied = "output.weight" in checkpoint.tensors
    embedding = checkpoint.tensors["token_embd.weight"].num_bytes if untied else 0
    return checkpoint.weights_bytes - embedding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-source", type=Path, required=True, help="the unpacked llama-cpp-python sdist")
    parser.add_argument("--llama-tools", type=Path, required=True, help="the folder with llama-bench and its libraries")
    parser.add_argument("--peer-python", required=True, help="a Python that has openvino-genai and numpy")
    parser.add_argument("--bandwidth", type=Path, required=True, help="the program built from bench_bandwidth.cpp")
    parser.add_argument("--smollm2", type=Path, required=True)
    parser.add_argument("--gemma3", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    num_threads = str(options.threads)

    def opened(model: Path, command: list[str], measures: Measures | None = None) -> Contestant:
        def start() -> Worker:
            return Worker(command)

        worker = start()
        return Contestant(f"{worker.about['name']}, {model.stem}", model, start, worker, measures or by_worker(worker))

    def ours(model: Path) -> Contestant:
        return opened(model, [sys.executable, "ours_worker.py", str(model), num_threads])

    def llama(model: Path) -> Contestant:
        places = (str(options.llama_source), str(options.llama_tools))
        command = [str(options.peer_python), "llama_cpp_worker.py", str(model), num_threads, *places]
        measures = by_llama_bench(options.llama_tools, model, options.threads)
        return opened(model, command, measures)

    def openvino(model: Path) -> Contestant:
        command = [str(options.peer_python), "openvino_worker.py", str(model), num_threads]
        return opened(model, command)

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        q4_1 = options.smollm2.resolve()
        q8_0 = folder / "SmolLM2-135M-Instruct.Q8_0.gguf"
        quantize = [str(options.llama_tools / "llama-quantize"), "--allow-requantize", str(q4_1), str(q8_0), "Q8_0"]
        subprocess.run(quantize, capture_output=True, check=True)
        gemma3 = options.gemma3.resolve()
        # A requantised file is judged by the weights it has, as the published one is.
        groups: tuple[Callable[[], list[Contestant]], ...] = (
            lambda: [ours(q4_1), llama(q4_1), ours(q8_0), llama(q8_0), openvino(q8_0)],
            lambda: [ours(gemma3), llama(gemma3)],
        )
        print(
            f"{options.threads} threads, {options.repeats} alternating repeats: median (smallest to largest). Prefill"
        )
        print("and decode in tokens per second.\n")
        for start_all in groups:
            contestants = start_all()
            measure(contestants, options.repeats)
            judge(contestants, folder)
            report(contestants, partial(bandwidth_bytes_per_s, options.bandwidth, options.threads))
            for contestant in contestants:
                contestant.worker.close()


if __name__ == "__main__":
    main()
