"""The context, several choices, and the counters."""

from __future__ import annotations

import time

import msgspec

from pocketllm.testing.case import case
from pocketllm.testing.rig import Rig
from pocketllm.testing.rules import broken
from pocketllm.types import EngineStats

TOTALS = (
    "num_steps",
    "num_preemptions",
    "num_prompt_tokens",
    "num_generated_tokens",
    "prefix_cache_hits",
    "prefix_cache_misses",
    "prefix_cache_reused_tokens",
)


@case("N1")
def a_prompt_may_fill_the_context(rig: Rig) -> None:
    """max_model_len - 1 tokens of prompt and one of answer."""
    prompt = rig.prompt(1, rig.capabilities.max_model_len - 1)
    sent = rig.run(rig.request(prompt, max_tokens=1))
    if len(sent.tokens()) != 1 or sent.reason not in ("length", "stop"):
        raise broken("N1", f'a full context gave {len(sent.tokens())} tokens and "{sent.reason}"')


@case("N1")
def an_answer_may_end_at_the_last_position(rig: Rig) -> None:
    """A prompt that leaves eight positions, and a budget of eight."""
    prompt = rig.prompt(2, rig.capabilities.max_model_len - 8)
    sent = rig.run(rig.request(prompt, max_tokens=8))
    if sent.reason not in ("length", "stop"):
        raise broken("N1", f'an answer up to the last position ended in "{sent.reason}"')


@case("N2")
def each_choice_has_its_stream(rig: Rig) -> None:
    """Three choices of a greedy request are the same answer three times, in three streams."""
    sent = rig.run(rig.request(max_tokens=6, seeds=(5, 6, 7)))
    answers = [sent.tokens(index) for index in range(3)]
    if rig.deterministic and any(answer[:1] != answers[0][:1] for answer in answers):
        raise broken("N2", f"greedy choices differ: {answers}")


@case("U1")
def counters_agree_with_events(rig: Rig) -> None:
    """The number of generated tokens grows by the rows that were posted; no total decreases."""
    before = rig.settled_stats()
    sents = [rig.send(rig.request(rig.prompt(index), max_tokens=3 + index)) for index in range(4)]
    num_rows = sum(len(sent.wait().tokens()) for sent in sents)
    after = rig.settled_stats()
    for name in TOTALS:
        if getattr(after, name) < getattr(before, name):
            raise broken("U1", f"{name} fell from {getattr(before, name)} to {getattr(after, name)}")
    counted = after.num_generated_tokens - before.num_generated_tokens
    if counted != num_rows:
        raise broken("U1", f"{num_rows} tokens were posted and num_generated_tokens grew by {counted}")
    if after.num_prompt_tokens <= before.num_prompt_tokens:
        raise broken("U1", "four prompts were read and num_prompt_tokens did not grow")


@case("U1")
def counters_are_possible(rig: Rig) -> None:
    """While sequences run: no more of them than places, no more free than there are."""
    sents = [rig.send(rig.long_request(index)) for index in range(rig.capabilities.max_batch_size + 1)]
    for _ in range(20):
        stats = rig.stats()
        if not 0 <= stats.num_free_slots <= stats.num_slots or not 0 <= stats.num_free_blocks <= stats.num_blocks:
            raise broken("U1", f"impossible counters: {_shown(stats)}")
        if stats.num_running > rig.capabilities.max_batch_size:
            raise broken("U1", f"{stats.num_running} run in an engine of {rig.capabilities.max_batch_size}")
        time.sleep(0.002)
    for sent in sents:
        rig.cancel(sent.handle)
        sent.wait()


def _shown(stats: EngineStats) -> str:
    return str({name: value for name, value in msgspec.structs.asdict(stats).items() if value})
