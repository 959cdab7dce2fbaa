"""A step as plain data: sent to another place it computes the same, and one part of the engine writes sequences."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
import torch

from pocketllm_torch.engine.plan import StepPlan, work_of
from pocketllm_torch.engine.sequence import SamplingState, Sequence
from pocketllm_torch.engine.step import Span, StepInput
from tests.torch.driving import Driver
from tests.torch.test_llama import BLOCK, TOLERANCE, Bench, Lane, largest
from tests.torch.tiny_llama import TinyLlama, random_ids


def sent(step: StepInput) -> StepInput:
    """As another process would get it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=StepInput)


def test_a_step_that_was_sent_gives_the_same_logits(tiny: TinyLlama) -> None:
    """Two engines, each with its caches: one is told by the other what to compute."""
    here, there = Bench(tiny.path), Bench(tiny.path)
    ids = random_ids(60, seed=1)
    lanes = [Lane(here.pool, ids[:20], handle=1), Lane(here.pool, ids[20:], handle=2)]
    plans = [
        lambda: StepPlan([], [lanes[0].chunk(19), lanes[1].chunk(17)]),
        lambda: StepPlan([lanes[0].decode()], [lanes[1].chunk(20)]),
        lambda: StepPlan([lanes[1].decode()], []),
    ]
    for plan in plans:
        step = work_of(plan(), BLOCK).step
        with torch.inference_mode():
            ours, theirs = here.runner.execute(step), there.runner.execute(sent(step))
        assert ours.logits is not None
        assert theirs.logits is not None
        assert torch.equal(ours.logits, theirs.logits)


def test_copies_come_before_the_rows(tiny: TinyLlama) -> None:
    """A choice that takes over a prompt has its own copy of the block in which both continue."""
    bench = Bench(tiny.path)
    ids = random_ids(22, seed=2)
    leader = Lane(bench.pool, ids[:20])
    bench.step([], [leader.chunk(20)])
    first, second = leader.sequence.blocks
    (copy,) = bench.pool.allocate(1)
    spans = [
        Span([ids[20]], 20, [first, second], 0, is_decode=True, num_logits=1),
        Span([ids[21]], 20, [first, copy], 1, is_decode=True, num_logits=1),
    ]
    with torch.inference_mode():
        logits = bench.runner.execute(StepInput(spans, block_copies=[(second, copy)])).logits
    assert logits is not None
    for row, token in zip(logits, ids[20:], strict=True):
        assert largest(row - tiny.logits([*ids[:20], token])[-1]) < TOLERANCE


def test_every_row_of_a_span_with_proposals_can_be_sampled_from(tiny: TinyLlama) -> None:
    bench = Bench(tiny.path)
    ids = random_ids(30, seed=3)
    lane = Lane(bench.pool, ids)
    bench.step([], [lane.chunk(25)])
    sequence = lane.decode()
    plan = StepPlan([sequence], drafts={sequence.handle: ids[26:30]})
    _, output = bench.execute(plan)
    assert output.logits is not None
    assert largest(output.logits - tiny.logits(ids)[25:]) < TOLERANCE


@pytest.mark.parametrize("kind, writer", [(Sequence, "scheduler.py"), (SamplingState, "sampler.py")])
def test_one_part_of_the_engine_writes(
    kind: type, writer: str, tiny: TinyLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over forks, preemptions, prompt log probabilities, penalties and cancellations."""
    writers = set()

    def recording(item: object, name: str, value: object) -> None:
        writers.add(Path(sys._getframe(1).f_code.co_filename).name)
        object.__setattr__(item, name, value)

    monkeypatch.setattr(kind, "__setattr__", recording)
    with Driver.open(tiny.path, dtype="float32", options={"kv_cache_bytes": 150_000}, max_model_len=160) as driver:
        for seed in range(6):
            driver.submit(random_ids(30, seed), n=1 + seed % 3, max_tokens=60, prompt_logprobs=True, temperature=1.0)
        constrained = driver.submit(random_ids(5, 9), max_tokens=150, repetition_penalty=1.2)
        driver.wait_for_tokens(constrained[0], 2)
        driver.cancel(constrained[0])
        driver.wait()
        assert driver.engine.pocketllm_stats().num_preemptions > 0
    # A dataclass's own __init__ has no file.
    assert writers == {"<string>", writer}
