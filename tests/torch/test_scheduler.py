"""Batching, admission, chunking, preemption and forks, without a model."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Choice, GenerationRequest
from pocketllm_torch.engine.block_pool import BlockPool
from pocketllm_torch.engine.plan import StepPlan
from pocketllm_torch.engine.scheduler import Scheduler
from pocketllm_torch.engine.sequence import Phase, Sequence

BLOCK = 4


def make(num_blocks: int = 64, **settings: Any) -> Scheduler:
    defaults = {"max_num_sequences": 4, "prefill_token_budget": 64, "chunk_tokens": 32}
    return Scheduler(BlockPool(num_blocks, BLOCK), **{**defaults, **settings})


_arrivals = iter(range(1, 1_000_000_000))


def request(prompt: int, *, max_tokens: int = 8, n: int = 1, priority: int = 0) -> list[Sequence]:
    arrival = next(_arrivals)
    choices = tuple(Choice(arrival * 1000 + index, index) for index in range(n))
    sampling = SamplingParams(max_tokens=max_tokens, n=n)
    body = GenerationRequest(
        prompt_tokens=tuple(range(prompt)), sampling_params=sampling, choices=choices, priority=priority
    )
    return Sequence.from_request(body, arrival)


def advance(scheduler: Scheduler, plan: StepPlan) -> list[Sequence]:
    """What the engine does with a plan: compute, fork, append a token, end what is complete. Returns the ended."""
    scheduler.advance(plan)
    sampled = plan.decodes + [chunk.sequence for chunk in plan.chunks if chunk.completes]
    for leader in list(sampled):
        if not leader.num_generated and leader.group.followers:
            sampled += scheduler.fork(leader)
    ended = []
    for sequence in sampled:
        scheduler.commit(sequence, [1])
        if sequence.num_generated >= sequence.max_tokens:
            scheduler.finish(sequence)
            ended.append(sequence)
    return ended


def check(scheduler: Scheduler) -> None:
    """No block is lost, held twice without sharing, or too few for what was computed."""
    held: set[int] = set()
    for sequence in scheduler.running:
        assert sequence.phase is Phase.RUNNING
        assert len(sequence.blocks) == len(set(sequence.blocks))
        assert len(sequence.blocks) * BLOCK >= sequence.num_computed
        held.update(sequence.blocks)
    for sequence in scheduler.waiting:
        assert sequence.phase is Phase.WAITING
        assert not sequence.blocks
    assert scheduler.pool.num_free == scheduler.pool.num_blocks - len(held)
    assert len(scheduler.running) <= scheduler.max_num_sequences
    assert [s.rank for s in scheduler.running] == sorted(s.rank for s in scheduler.running)


def test_a_prompt_longer_than_a_chunk_takes_several_steps() -> None:
    scheduler = make()
    (sequence,) = request(70)
    scheduler.add([sequence])
    lengths = []
    while not sequence.num_generated:
        plan = scheduler.schedule()
        lengths += [chunk.length for chunk in plan.chunks]
        advance(scheduler, plan)
    assert lengths == [32, 32, 6]
    assert scheduler.schedule().decodes == [sequence]


def test_decoding_goes_on_while_a_long_prompt_is_computed() -> None:
    scheduler = make(prefill_token_budget=32)
    short, long = request(4), request(200)
    scheduler.add(short)
    advance(scheduler, scheduler.schedule())
    scheduler.add(long)
    steps = 0
    while not long[0].num_generated and short[0].phase is Phase.RUNNING:
        plan = scheduler.schedule()
        assert plan.decodes == short
        assert [chunk.sequence for chunk in plan.chunks] == long
        assert plan.num_prompt_tokens <= 32
        advance(scheduler, plan)
        steps += 1
    assert steps == 7


def test_first_come_first_served_without_overtaking() -> None:
    scheduler = make(num_blocks=8)
    first, large, small = request(20), request(28), request(4)
    scheduler.add(first)
    scheduler.schedule()
    scheduler.add(large)
    scheduler.add(small)
    assert scheduler.schedule().sequences == first
    assert scheduler.waiting == [*large, *small]


def test_the_higher_priority_goes_first() -> None:
    scheduler = make(max_num_sequences=1)
    low, high = request(4), request(4, priority=5)
    scheduler.add(low)
    scheduler.add(high)
    assert scheduler.schedule().sequences == high


def test_slots_limit_what_runs() -> None:
    scheduler = make(max_num_sequences=2)
    for _ in range(3):
        scheduler.add(request(4))
    assert len(scheduler.schedule().chunks) == 2
    assert scheduler.num_waiting == 1


def test_a_newcomer_waits_until_those_that_run_have_a_spare_block_each() -> None:
    scheduler = make(num_blocks=4)
    first, second = request(7, max_tokens=6), request(6, max_tokens=6)
    scheduler.add(first)
    scheduler.add(second)
    assert scheduler.schedule().sequences == first
    assert scheduler.num_waiting == 1
    scheduler.finish(first[0])
    assert scheduler.schedule().sequences == second


def test_preemption_recomputes_prompt_and_answer() -> None:
    scheduler = make(num_blocks=6)
    first, second = request(7, max_tokens=12), request(7, max_tokens=12)
    scheduler.add(first)
    advance(scheduler, scheduler.schedule())
    scheduler.add(second)
    seen_replay = False
    for _ in range(60):
        plan = scheduler.schedule()
        check(scheduler)
        if not plan:
            break
        for chunk in plan.chunks:
            seen_replay |= chunk.sequence is second[0] and chunk.sequence.num_generated > 0 and chunk.start == 0
        advance(scheduler, plan)
    assert scheduler.num_preemptions > 0
    assert seen_replay
    assert first[0].num_generated == second[0].num_generated == 12
    assert scheduler.pool.num_free == 6


def test_the_choices_of_a_request_share_the_prompts_full_blocks() -> None:
    scheduler = make()
    sequences = request(10, n=3)
    scheduler.add(sequences)
    plan = scheduler.schedule()
    assert [chunk.sequence for chunk in plan.chunks] == sequences[:1]
    assert scheduler.num_waiting == 2
    scheduler.advance(plan)
    assert scheduler.fork(sequences[0]) == sequences[1:]
    leader = sequences[0].blocks
    for follower in sequences[1:]:
        assert follower.blocks[:2] == leader[:2]
        assert follower.blocks[2] != leader[2]
    plan = scheduler.schedule()
    assert plan.block_copies == [(leader[2], follower.blocks[2]) for follower in sequences[1:]]
    assert plan.slot_copies == [(sequences[0].slot, follower.slot) for follower in sequences[1:]]
    check(scheduler)
    for sequence in sequences:
        scheduler.finish(sequence)
    assert scheduler.pool.num_free == scheduler.pool.num_blocks


def test_followers_without_a_slot_compute_the_prompt_themselves() -> None:
    scheduler = make(max_num_sequences=2)
    sequences = request(6, n=4, max_tokens=3)
    scheduler.add(sequences)
    for _ in range(20):
        plan = scheduler.schedule()
        if not plan:
            break
        advance(scheduler, plan)
        check(scheduler)
    assert [sequence.num_generated for sequence in sequences] == [3, 3, 3, 3]


@pytest.mark.parametrize("computed_steps", [0, 1])
def test_when_the_leader_is_cancelled_another_choice_leads(computed_steps: int) -> None:
    scheduler = make(chunk_tokens=4)
    sequences = request(10, n=3)
    scheduler.add(sequences)
    for _ in range(computed_steps):
        advance(scheduler, scheduler.schedule())
    scheduler.finish(sequences[0])
    plan = scheduler.schedule()
    assert [chunk.sequence for chunk in plan.chunks] == [sequences[1]]
    scheduler.finish(sequences[2])
    scheduler.finish(sequences[1])
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
    assert not scheduler.schedule()


def test_fixed_chunks_are_cut_at_multiples_also_beside_others() -> None:
    def lengths(scheduler: Scheduler, sequence: Sequence) -> list[int]:
        scheduler.add([sequence])
        found = []
        while not sequence.num_generated:
            plan = scheduler.schedule()
            found += [chunk.length for chunk in plan.chunks if chunk.sequence is sequence]
            advance(scheduler, plan)
        return found

    alone = lengths(make(chunk_tokens=16, prefill_token_budget=20, fixed_chunks=True), request(45)[0])
    busy = make(chunk_tokens=16, prefill_token_budget=20, fixed_chunks=True)
    for _ in range(3):
        busy.add(request(9, max_tokens=50))
    advance(busy, busy.schedule())
    assert lengths(busy, request(45)[0]) == alone == [16, 16, 13]


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_any_workload_ends_with_every_block_free(seed: int, fixed: bool) -> None:
    rng = random.Random(seed)
    num_blocks = rng.randint(6, 20)
    scheduler = make(
        num_blocks=num_blocks,
        max_num_sequences=rng.randint(1, 5),
        prefill_token_budget=rng.randint(1, 24),
        chunk_tokens=rng.randint(1, 16),
        fixed_chunks=fixed,
    )
    alive: list[Sequence] = []
    to_come = rng.randint(1, 8)
    for _ in range(3000):
        if to_come and rng.random() < 0.3:
            to_come -= 1
            longest = num_blocks * BLOCK
            prompt = rng.randint(1, longest - 1)
            sequences = request(
                prompt, max_tokens=rng.randint(1, longest - prompt), n=rng.randint(1, 3), priority=rng.randint(0, 1)
            )
            scheduler.add(sequences)
            alive += sequences
        if alive and rng.random() < 0.05:
            scheduler.finish(alive.pop(rng.randrange(len(alive))))
        plan = scheduler.schedule()
        check(scheduler)
        assert plan or not alive, "a sequence waits and nothing runs"
        assert len(set(map(id, plan.sequences))) == len(plan.sequences)
        for sequence in advance(scheduler, plan):
            alive.remove(sequence)
        if not alive and not to_come:
            break
    assert not alive
    assert not to_come
    assert scheduler.pool.num_free == num_blocks
    assert scheduler.num_waiting == 0


def test_a_preempted_choice_with_tokens_of_its_own_follows_no_leader() -> None:
    """Such a choice cannot continue behind a leader's prompt: it has to compute its own tokens again too."""
    scheduler = make(chunk_tokens=4, prefill_token_budget=16)
    leader, preempted = request(8, n=2)
    scheduler.add([leader])
    advance(scheduler, scheduler.schedule())
    assert leader.num_generated == 0
    preempted.tokens += [1, 1]
    scheduler.add([preempted])
    scheduler.schedule()
    assert preempted.phase is Phase.RUNNING
    assert leader.group.followers == []
