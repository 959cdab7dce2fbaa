"""The timer behind ``send_timeout_s``, on a clock that runs only while everybody waits."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Message

from pocketllm_server.http_io import ClientGoneError
from pocketllm_server.stall_timer import StallTimer

LIMIT_S = 10.0


class Reader:
    """Takes each chunk after as many seconds as it says."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    async def send(self, message: Message) -> None:
        await asyncio.sleep(float(message["body"] or b"0"))
        self.taken.append(message["body"])


def run(main: Callable[[StallTimer, Reader], Coroutine[Any, Any, None]]) -> tuple[float, Reader]:
    """Run inside the block; gives the seconds that have passed on the clock."""
    loop = asyncio.new_event_loop()
    now = 0.0
    poll = loop._selector.select  # type: ignore[attr-defined]  # where a loop spends its idle time

    def select(timeout: float | None) -> Any:
        nonlocal now
        assert timeout is not None, "everybody waits for ever"
        now += timeout
        return poll(0)

    loop._selector.select = select  # type: ignore[attr-defined]
    loop.time = lambda: now  # type: ignore[method-assign]
    reader = Reader()

    async def block() -> None:
        try:
            async with StallTimer(reader.send, LIMIT_S) as timer:
                await main(timer, reader)
        except ClientGoneError:
            reader.taken.append(b"cut")

    try:
        loop.run_until_complete(block())
    finally:
        loop.close()
    return now, reader


def test_a_chunk_that_nobody_takes_ends_the_block_at_the_limit() -> None:
    async def main(timer: StallTimer, reader: Reader) -> None:
        await timer.send_chunk(b"9")
        await timer.send_chunk(b"100")

    now, reader = run(main)
    assert reader.taken == [b"9", b"cut"]
    assert now == pytest.approx(9 + LIMIT_S)


def test_a_slow_reader_and_a_silent_writer_are_no_stall() -> None:
    async def main(timer: StallTimer, reader: Reader) -> None:
        for _ in range(20):
            await timer.send_chunk(b"9.5")
        await asyncio.sleep(7 * LIMIT_S)
        await timer.send_chunk(b"", more=False)

    now, reader = run(main)
    assert reader.taken == [b"9.5"] * 20 + [b""]
    assert now == pytest.approx(190 + 7 * LIMIT_S)


def test_senders_beside_each_other_share_the_limit() -> None:
    async def main(timer: StallTimer, reader: Reader) -> None:
        await asyncio.gather(timer.send_chunk(b"6"), timer.send_chunk(b"100"), timer.send_chunk(b"8"))

    now, reader = run(main)
    assert reader.taken == [b"6", b"8", b"cut"]
    assert now == pytest.approx(8 + LIMIT_S)


def test_an_error_inside_goes_out_as_it_is() -> None:
    async def main(timer: StallTimer, reader: Reader) -> None:
        await timer.send_chunk(b"1")
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        run(main)


def test_a_cancellation_from_outside_stays_one() -> None:
    async def main(timer: StallTimer, reader: Reader) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_at(LIMIT_S, task.cancel)
        await timer.send_chunk(b"100")

    with pytest.raises(asyncio.CancelledError):
        run(main)


def test_a_cut_leaves_no_reference_cycle() -> None:
    class Answer:
        """What a response holds while it is sent."""

    seen: list[weakref.ref[Answer]] = []

    async def main(timer: StallTimer, reader: Reader) -> None:
        answer = Answer()
        seen.append(weakref.ref(answer))
        await timer.send_chunk(b"100")

    gc.collect()
    gc.disable()
    try:
        run(main)
        assert seen[0]() is None
    finally:
        gc.enable()
