"""Throws random bytes, cuts, tags and templates at the text pipeline: ``python tests/fuzz/text.py --seconds 60``.

Prints the seed of each run; a failing round is repeated with ``--seed``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pocketllm.errors import PocketLLMError
from pocketllm.text.chat_template import ChatTemplate
from pocketllm.text.choice import ChoiceText, TextDelta
from pocketllm.text.detokenizer import Detokenizer
from pocketllm.text.reasoning import ReasoningSplitter
from pocketllm.text.stop_strings import StopStrings, find_first_stop
from tests.text import templates
from tests.text.hostile_templates import REFUSED
from tests.text.test_reasoning import reference as split_reference
from tests.text.vocabularies import MIXED_PIECES, ByteVocabulary

TEXT_PARTS = ["<think>", "</think>", "\n", "a", "ab", "aab", "b", "<", "</", "think>", " ", "é", "😊", "STOP", "ST"]
TEMPLATES = [templates.CHATML_JSON, templates.CHATML_XML, templates.HEADERS, templates.TURNS, templates.ODDS_AND_ENDS]
TEMPLATE_PARTS = [*TEMPLATES, *REFUSED.values()]
MESSAGES = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "<u>"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a": [1]}'}}]},
    {"role": "tool", "content": "t"},
]


def random_text(rng: random.Random) -> str:
    return "".join(rng.choices(TEXT_PARTS, k=rng.randrange(30)))


def random_ends(rng: random.Random, length: int) -> list[tuple[int, int]]:
    places = sorted(rng.randrange(length + 1) for _ in range(rng.randrange(8)))
    return list(zip([0, *places], [*places, length], strict=True))


def fuzz_detokenizer(rng: random.Random) -> None:
    tokenizer = ByteVocabulary(MIXED_PIECES, add_space_prefix=rng.random() < 0.5)
    ids = [rng.randrange(len(MIXED_PIECES) + 3) for _ in range(rng.randrange(60))]
    detokenizer = Detokenizer(tokenizer)
    text = "".join(detokenizer.feed(ids[start:end]) for start, end in random_ends(rng, len(ids)))
    assert text + detokenizer.finish() == tokenizer.decode(ids)


def fuzz_stop_strings(rng: random.Random) -> None:
    text = random_text(rng)
    stops = [random_text(rng)[: rng.randrange(6)] for _ in range(rng.randrange(5))]
    machine = StopStrings(stops)
    answer = "".join(machine.feed(text[start:end])[0] for start, end in random_ends(rng, len(text))) + machine.finish()
    match = find_first_stop(text, stops)
    assert machine.match == match
    assert answer == (text if match is None else text[: match[0]])


def fuzz_reasoning(rng: random.Random) -> None:
    text, mode = random_text(rng), rng.choice(["none", "open", "auto"])
    splitter = ReasoningSplitter(mode)
    deltas = [splitter.feed(text[start:end]) for start, end in random_ends(rng, len(text))] + [splitter.finish()]
    assert ("".join(r for r, _ in deltas), "".join(c for _, c in deltas)) == split_reference(mode, text)


def fuzz_choice(rng: random.Random) -> None:
    pieces = [part.encode() for part in TEXT_PARTS] + [b"\xf0\x9f", b"\x98\x8a", b"<eos>"]
    tokenizer = ByteVocabulary(pieces, special=[len(pieces) - 1])
    ids = [rng.randrange(len(pieces)) for _ in range(rng.randrange(40))]
    stops = [random_text(rng)[: rng.randrange(6)] for _ in range(rng.randrange(4))]
    mode = rng.choice(["none", "open", "auto"])

    def run(ends: list[tuple[int, int]]) -> tuple[str, str, int, bool, int]:
        choice = ChoiceText(tokenizer, stop=stops, reasoning_mode=mode)
        deltas: list[TextDelta] = [choice.feed(ids[start:end]) for start, end in ends] + [choice.finish()]
        content = "".join(delta.content for delta in deltas)
        reasoning = "".join(delta.reasoning for delta in deltas)
        return content, reasoning, choice.offsets.num_used, choice.stopped, choice.offsets.num_in_text

    assert run(random_ends(rng, len(ids))) == run([(0, len(ids))]) == run([(i, i + 1) for i in range(len(ids))])


def fuzz_template(rng: random.Random) -> None:
    source = rng.choice(TEMPLATE_PARTS)
    for _ in range(rng.randrange(4)):
        other = rng.choice(TEMPLATES)
        start, place = rng.randrange(len(other)), rng.randrange(len(source) + 1)
        cut_end = min(len(source), place + rng.randrange(20))
        source = source[:place] + other[start : start + rng.randrange(60)] + source[cut_end:]
    started_s = time.monotonic()
    try:
        ChatTemplate(source, bos_token="<s>").render(rng.sample(MESSAGES, rng.randrange(len(MESSAGES) + 1)))
    except PocketLLMError:
        pass  # a refusal is the right answer to nearly all of these
    assert time.monotonic() - started_s < 30, "a template ran past its time limit"


QUICK_TARGETS = [fuzz_detokenizer, fuzz_stop_strings, fuzz_reasoning, fuzz_choice]


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
    print(f"text: {seed - first_seed} rounds from seed {first_seed}, no failure")


def run_round(seed: int) -> None:
    rng = random.Random(seed)
    # A template may take seconds to be refused, the others take microseconds.
    targets = [*QUICK_TARGETS, fuzz_template] if seed % 50 == 0 else QUICK_TARGETS
    for target in targets:
        try:
            target(rng)
        except BaseException:
            print(f"text: {target.__name__} failed; repeat with --seed {seed}", file=sys.stderr)
            raise


if __name__ == "__main__":
    main()
