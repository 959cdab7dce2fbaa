"""Outbox: nothing lost, nothing reordered, and a wake only when the consumer has gone to sleep."""

from __future__ import annotations

import select
import threading

from pocketllm.engine.outbox import Outbox, Wake
from pocketllm.types import StepBatch


def _readable(fd: int, timeout_s: float = 0.0) -> bool:
    return bool(select.select([fd], [], [], timeout_s)[0])


def test_a_post_makes_it_readable_and_a_drain_makes_it_quiet() -> None:
    outbox = Outbox()
    assert not _readable(outbox.fileno())
    outbox.post(StepBatch(tokens=[1]))
    outbox.post(StepBatch(tokens=[2]))
    assert _readable(outbox.fileno())
    assert [batch.tokens for batch in outbox.drain()] == [[1], [2]]
    assert not _readable(outbox.fileno())
    assert outbox.drain() == []
    outbox.close()


def test_posts_between_wakes_cost_no_wake() -> None:
    outbox = Outbox()
    wakes = []
    original = outbox._wake.set
    outbox._wake.set = lambda: (wakes.append(1), original())[1]  # type: ignore[method-assign]  # counted on the way
    for token in range(10):
        outbox.post(StepBatch(tokens=[token]))
    assert len(wakes) == 1
    outbox.drain()
    outbox.post(StepBatch())
    assert len(wakes) == 2
    outbox.close()


def test_four_producers_and_one_sleeping_consumer_lose_nothing() -> None:
    outbox = Outbox()
    per_producer = 5_000

    def produce(producer: int) -> None:
        for number in range(per_producer):
            outbox.post(StepBatch(handles=[producer], tokens=[number]))

    threads = [threading.Thread(target=produce, args=(producer,)) for producer in range(4)]
    for thread in threads:
        thread.start()
    seen: dict[int, list[int]] = {producer: [] for producer in range(4)}
    while sum(map(len, seen.values())) < 4 * per_producer:
        assert _readable(outbox.fileno(), 20.0), "a wake was lost"
        for batch in outbox.drain():
            seen[batch.handles[0]].append(batch.tokens[0])
    for thread in threads:
        thread.join()
    assert all(numbers == list(range(per_producer)) for numbers in seen.values())
    outbox.close()


def test_a_post_after_close_is_harmless_and_kept() -> None:
    outbox = Outbox()
    outbox.close()
    outbox.post(StepBatch(tokens=[7]))
    assert [batch.tokens for batch in outbox.drain()] == [[7]]


def test_a_wake_is_level_triggered_and_closes_once() -> None:
    wake = Wake()
    wake.set()
    wake.set()
    assert _readable(wake.fileno())
    wake.clear()
    assert not _readable(wake.fileno())
    wake.close()
    wake.close()
    wake.set()
    assert wake.fileno() == -1
