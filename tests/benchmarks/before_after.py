"""This tree beside an earlier one, in one run, alternating: what a change of structure may not cost.

    nox -s benchmarks -- before_after --before FOLDER

FOLDER is a checkout whose environment is installed: `python3 -m nox -s tests -- --collect-only` does it there.
Measured on SmolLM2-135M Q4_1, Gemma 3 270M Q4_K_M and a random 1B Q4_K_M: prompts, one sequence, eight sequences,
loading; and the same through `pocketllm serve` on SmolLM2. Each with the best instruction set of the CPU and, where
that is AVX-512, with AVX2. Every figure is the median (smallest to largest); the last column says how many times
better this tree is, pair by pair.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from peers import CACHE, gemma3, smollm2

FOLDER = Path(__file__).resolve().parent / "_peers"
REPOSITORY = FOLDER.parents[2]
sys.path.insert(0, str(FOLDER))

from compare import by_worker, load_figures, tokens  # noqa: E402 - found through the path above
from random_model import random_model  # noqa: E402
from serving import MAX_TOKENS, NUM_REQUESTS, PROMPT_TOKENS, STREAMS, Server, load  # noqa: E402
from worker import Worker  # noqa: E402

INSTRUCTION_SET = "POCKET_INSTRUCTION_SET"


@dataclass
class Pairs:
    """One figure of both trees; entries of equal index were measured one after the other."""

    less_is_better: bool = False
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    def add(self, tree: str, value: float) -> None:
        (self.before if tree == "before" else self.after).append(value)

    def cells(self) -> str:
        ratios = [after / before for before, after in zip(self.before, self.after, strict=True)]
        if self.less_is_better:
            ratios = [1 / ratio for ratio in ratios]
        return " | ".join((spread(self.before), spread(self.after), spread(ratios, 3)))


class Table:
    """Figures by name, in the order in which they were first met."""

    def __init__(self) -> None:
        self._rows: dict[str, Pairs] = {}

    def add(self, tree: str, name: str, value: float, *, less_is_better: bool = False) -> None:
        self._rows.setdefault(name, Pairs(less_is_better)).add(tree, value)

    def show(self, title: str) -> None:
        print(f"\n{title}\n\n| figure | before | after | times better |\n|---|---|---|---|")
        print(*(f"| {name} | {pairs.cells()} |" for name, pairs in self._rows.items()), sep="\n", flush=True)


def spread(values: list[float], digits: int | None = None) -> str:
    shown = digits if digits is not None else 2 if statistics.median(values) < 10 else 0
    return f"{statistics.median(values):.{shown}f} ({min(values):.{shown}f} to {max(values):.{shown}f})"


def python_of(tree: Path) -> str:
    python = tree / ".nox" / "pocketllm" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{tree} has no environment: run `python3 -m nox -s tests -- --collect-only` there first")
    return str(python)


def turns(repeats: int) -> Iterator[tuple[bool, tuple[str, str]]]:
    """Whether a round counts, and who goes first in it: half of them go backwards, so drift favours nobody."""
    for repeat in range(-1, repeats):
        yield repeat >= 0, ("before", "after") if repeat % 2 else ("after", "before")


def compare_engines(trees: dict[str, Path], model: Path, threads: int, repeats: int, instruction_set: str) -> Table:
    environment = {**os.environ, INSTRUCTION_SET: instruction_set}

    def start(tree: Path) -> Worker:
        worker = tree / "tests" / "benchmarks" / "_peers" / "ours_worker.py"
        return Worker([python_of(tree), str(worker), str(model), str(threads)], environment)

    table = Table()
    with ExitStack() as stack:
        workers = {name: stack.enter_context(closing(start(tree))) for name, tree in trees.items()}
        measures = {name: by_worker(worker) for name, worker in workers.items()}
        for counts, order in turns(repeats):
            for column in measures["before"]:
                seed = random.random()
                for name in order:
                    speed = measures[name][column](random.Random(seed))
                    if counts:
                        table.add(name, f"{column}, tokens/s", speed)
            for name in order:
                load_s, peak_bytes = load_figures(partial(start, trees[name]))
                if counts:
                    table.add(name, "load, s", load_s, less_is_better=True)
                    table.add(name, "peak, MB", peak_bytes / 1e6, less_is_better=True)
    return table


def compare_servers(trees: dict[str, Path], model: Path, threads: int, repeats: int) -> Table:
    def command(tree: Path, port: int) -> list[str]:
        options = ("--backend-option", f"num_threads={threads}", "--backend-option", "prefix_cache=false")
        sizes = ("--max-model-len", "2048", "--max-batch-size", "16", "--backend", "cpp")
        return [python_of(tree), "-m", "pocketllm", "serve", str(model), *sizes, *options, "--port", str(port)]

    table = Table()
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(closing(Server(name, partial(command, tree), "/ready")))
            for name, tree in trees.items()
        }
        for counts, order in turns(repeats):
            for num_streams in STREAMS:
                dice = random.Random(random.random())
                prompts = [tokens(dice, PROMPT_TOKENS) for _ in range(NUM_REQUESTS)]
                for name in order:
                    run = load(servers[name].port, prompts, num_streams)
                    if counts:
                        streams = f"{num_streams} streams, "
                        table.add(name, f"{streams}tokens/s", run.tokens_per_s)
                        table.add(name, f"{streams}first token, ms", run.first_s * 1e3, less_is_better=True)
                        table.add(
                            name, f"{streams}p99 between tokens, ms", run.between_p99_s * 1e3, less_is_better=True
                        )
    return table


def instruction_sets() -> list[str]:
    code = "from pocketllm_cpp import _native; print(_native.instruction_set())"
    best = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return [best, "avx2"] if best == "avx512" else [best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="the earlier checkout")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", nargs="+", choices=("smollm2", "gemma3", "1b"), default=["smollm2", "gemma3", "1b"])
    parser.add_argument("--sets", nargs="+", default=None, help="instruction sets; default: see above")
    parser.add_argument("--no-serving", action="store_true")
    options = parser.parse_args()
    if options.before is None:
        print("Nothing was measured: name an earlier checkout with --before FOLDER.")
        return
    CACHE.mkdir(exist_ok=True)
    models = {
        "smollm2": smollm2,
        "gemma3": gemma3,
        "1b": lambda: random_model(CACHE / "models", smollm2()),
    }
    trees = {"before": options.before.resolve(), "after": REPOSITORY}
    print(f"{options.threads} threads, {options.repeats} alternating repeats")
    for instruction_set in options.sets or instruction_sets():
        for name in options.models:
            model = models[name]().resolve()
            table = compare_engines(trees, model, options.threads, options.repeats, instruction_set)
            table.show(f"{name}, {instruction_set}")
    if not options.no_serving:
        table = compare_servers(trees, smollm2().resolve(), options.threads, options.repeats)
        table.show(
            f"`pocketllm serve`, smollm2, {NUM_REQUESTS} requests of {PROMPT_TOKENS} + {MAX_TOKENS} tokens a run"
        )


if __name__ == "__main__":
    main()
