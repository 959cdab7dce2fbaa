"""Runs the scenarios of tests/scheduling/steps.json that need nothing which this scheduler lacks.

The format and the policy it tells are in the README beside it.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Choice, GenerationRequest
from pocketllm_torch.engine.block_pool import BlockPool
from pocketllm_torch.engine.plan import Chunk
from pocketllm_torch.engine.scheduler import Scheduler
from pocketllm_torch.engine.sequence import Phase, Sequence

BLOCK = 16
LIMIT = 1_000_000
# It shares no prefixes, and computes recurrent models' prompts in the chunks of all others.
LACKS = {"prefix_cache", "recurrent_state"}
TABLE: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "scheduling" / "steps.json").read_text(encoding="utf-8")
)
RUN = [scenario for scenario in TABLE if not LACKS & set(scenario["needs"])]


class Bench:
    """Plays the engine: computes nothing, and samples token 1."""

    def __init__(
        self,
        num_blocks: int = 64,
        num_slots: int = 4,
        prefill_token_budget: int = 128,
        prefill_tokens_beside_decodes: int = 0,
    ) -> None:
        self.pool = BlockPool(num_blocks, BLOCK)
        self.scheduler = Scheduler(
            self.pool,
            max_num_sequences=num_slots,
            prefill_token_budget=prefill_token_budget,
            prefill_tokens_beside_decodes=prefill_tokens_beside_decodes,
        )
        self.sequences: list[Sequence] = []
        self.drafts: dict[int, list[int]] = {}

    def add(
        self,
        prompt: list[list[int]],
        num_choices: int = 1,
        priority: int = 0,
        prompt_logprobs: bool = False,
        max_tokens: int = LIMIT,
    ) -> None:
        tokens = tuple(index * 31 % 97 + 100 * kind for length, kind in prompt for index in range(length))
        first = len(self.sequences)
        request = GenerationRequest(
            prompt_tokens=tokens,
            sampling_params=SamplingParams(max_tokens=max_tokens, n=num_choices, prompt_logprobs=prompt_logprobs),
            choices=tuple(Choice(first + index, 0) for index in range(num_choices)),
            priority=priority,
        )
        added = Sequence.from_request(request, first)
        self.sequences += added
        self.scheduler.add(added)

    def step(self) -> str:
        """One step, as "sequence:start+length" per entry; a star behind rows that begin within the prompt."""
        drafts, self.drafts = self.drafts, {}
        plan = self.scheduler.schedule(drafts)
        decodes = [
            Chunk(sequence, sequence.num_computed, 1 + len(plan.drafts.get(sequence.handle, [])))
            for sequence in plan.decodes
        ]
        chunks = decodes + plan.chunks
        shown = [
            f"{chunk.sequence.handle}:{chunk.start}+{chunk.length}"
            + "*" * (chunk.start < chunk.sequence.num_prompt_tokens)
            for chunk in chunks
        ]
        sampled = plan.decodes + [chunk.sequence for chunk in plan.chunks if chunk.completes]
        self.scheduler.advance(plan)
        for leader in list(sampled):
            if leader.num_generated == 0:
                sampled += self.scheduler.fork(leader)
        for sequence in sampled:
            assert len(sequence.blocks) * BLOCK >= sequence.num_computed
            self.scheduler.take_prompt_report(sequence)
            right = itertools.takewhile(lambda token: token == 1, plan.drafts.get(sequence.handle, []))
            self.scheduler.commit(sequence, [1, *right])
        return " ".join(shown)

    def finish(self, index: int) -> None:
        sequence = self.sequences[index]
        if sequence.phase is not Phase.DONE:
            self.scheduler.finish(sequence)

    def count(self, name: str) -> int:
        scheduler = self.scheduler
        counts = {
            "num_running": len(scheduler.running),
            "num_waiting": scheduler.num_waiting,
            "num_free_slots": scheduler.max_num_sequences - len(scheduler.running),
            "num_free_blocks": self.pool.num_free,
            "num_preemptions": scheduler.num_preemptions,
        }
        return counts[name]

    def num_shared_blocks(self, pair: list[int]) -> int:
        """How many blocks the two begin with in common; they share no other."""
        first, second = (self.sequences[index].blocks for index in pair)
        shared = set(first) & set(second)
        assert first[: len(shared)] == second[: len(shared)]
        return len(shared)


def act(bench: Bench, name: str, value: Any) -> None:
    match name:
        case "add":
            bench.add(**value)
        case "steps":
            for expected in value:
                assert bench.step() == expected
        case "run":
            for _ in range(value):
                bench.step()
        case "finish":
            bench.finish(value)
        case "draft":
            bench.drafts[value["sequence"]] = value["tokens"]
        case "set_budget":
            bench.scheduler.prefill_token_budget = value["prefill_token_budget"]
            bench.scheduler.prefill_tokens_beside_decodes = value.get("prefill_tokens_beside_decodes", 0)
        case "expect":
            assert {count: bench.count(count) for count in value} == value
        case "expect_shared_blocks":
            assert bench.num_shared_blocks(value["of"]) == value["num_blocks"]
        case _:
            pytest.fail(f"unknown action: {name}")


@pytest.mark.parametrize("scenario", RUN, ids=lambda scenario: scenario["name"])
def test_a_scenario_takes_the_steps_it_says(scenario: dict[str, Any]) -> None:
    bench = Bench(**scenario["options"])
    for action in scenario["actions"]:
        for name, value in action.items():
            act(bench, name, value)
    for index in range(len(bench.sequences)):
        bench.finish(index)
    assert bench.pool.num_free == bench.pool.num_blocks
    assert bench.scheduler.running == bench.scheduler.waiting == []


def test_most_of_the_table_is_run() -> None:
    assert len(RUN) >= 20
    assert {need for scenario in TABLE for need in scenario["needs"]} <= LACKS | {"drafts"}
