"""Throws random and damaged completions at the tool-call parsers: ``python tests/fuzz/tool_calls.py --seconds 60``.

The streaming parser must agree with the whole-text one however the text is cut. Prints the seed of each run; a failing
round is repeated with ``--seed``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.text.test_tool_calls_corpus import PIECES, cut, expected, stream
from tests.text.tool_call_corpus import CORPUS, SYNTAXES, TOOLS


def random_text(rng: random.Random, name: str) -> str:
    """Pieces of the syntax in any order, or a completion of the corpus with some damage."""
    if rng.random() < 0.5:
        return "".join(rng.choices(PIECES[name], k=rng.randrange(40)))
    text = rng.choice(CORPUS[name]).text
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice(["", *PIECES[name]]) + text[place + rng.randrange(4) :]
    return text


def run_round(seed: int) -> None:
    rng = random.Random(seed)
    for name, syntax in SYNTAXES.items():
        text = random_text(rng, name)
        tools = rng.choice([TOOLS, None])
        places = [rng.randrange(len(text) + 1) for _ in range(rng.randrange(10))]
        try:
            parsed = syntax.parse(text, tools)
            assert stream(name, cut(text, places), tools=tools) == expected(text, parsed)
            assert stream(name, text, tools=tools) == expected(text, parsed)
            eager = stream(name, cut(text, places), eager=True, tools=tools)
            assert eager == stream(name, text, eager=True, tools=tools)
            if parsed is not None:
                assert eager == expected(text, parsed)
        except BaseException:
            print(f"tool_calls: {name} failed on {text!r}; repeat with --seed {seed}", file=sys.stderr)
            raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="run this one round and stop")
    options = parser.parse_args()
    if options.seed is not None:
        run_round(options.seed)
        return
    first_seed = seed = random.SystemRandom().randrange(1 << 40)
    deadline_s = time.monotonic() + options.seconds
    while time.monotonic() < deadline_s:
        run_round(seed)
        seed += 1
    print(f"tool_calls: {seed - first_seed} rounds from seed {first_seed}, no failure")


if __name__ == "__main__":
    main()
