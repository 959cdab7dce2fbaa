"""Stalls and silence in a streamed body, on a clock that runs only while everybody waits."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Message

from pocketllm_server.answers.event_body import COMMENT, EventBody
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.transport.http_io import WRITE, ClientGoneError

LIMIT_S = 10.0


class Reader:
    """Takes each chunk after as many seconds as it says, and a comment after as many as it was told."""

    def __init__(self, comment_s: float = 0.0) -> None:
        self.taken: list[bytes] = []
        self.most_at_once = 0
        self._comment_s = comment_s
        self._num_sending = 0

    async def send(self, message: Message) -> None:
        self._num_sending += 1
        self.most_at_once = max(self.most_at_once, self._num_sending)
        data = message["body"]
        await asyncio.sleep(self._comment_s if data == COMMENT else float(data or b"0"))
        self._num_sending -= 1
        self.taken.append(data)


Main = Callable[[EventBody, Reader], Coroutine[Any, Any, None]]


def run(
    main: Main, interval_s: float = 0.0, comment_s: float = 0.0, write: Callable[[bytes], bool] | None = None
) -> tuple[float, Reader]:
    """Run inside the block; gives the seconds that have passed on the clock."""
    settings = ServerSettings(send_timeout_s=LIMIT_S, keep_alive_interval_s=interval_s)
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
    reader = Reader(comment_s)

    async def block() -> None:
        try:
            async with EventBody({} if write is None else {WRITE: write}, reader.send, settings) as body:
                await main(body, reader)
        except ClientGoneError:
            reader.taken.append(b"cut")

    try:
        loop.run_until_complete(block())
    finally:
        loop.close()
    return now, reader


def test_a_chunk_that_nobody_takes_ends_the_block_at_the_limit() -> None:
    async def main(body: EventBody, reader: Reader) -> None:
        await body.send(b"9")
        await body.send(b"100")

    now, reader = run(main)
    assert reader.taken == [b"9", b"cut"]
    assert now == pytest.approx(9 + LIMIT_S)


def test_a_slow_reader_and_a_silent_writer_are_no_stall() -> None:
    async def main(body: EventBody, reader: Reader) -> None:
        for _ in range(20):
            await body.send(b"9.5")
        await asyncio.sleep(7 * LIMIT_S)
        await body.send(b"", more=False)

    now, reader = run(main)
    assert reader.taken == [b"9.5"] * 20 + [b""]
    assert now == pytest.approx(190 + 7 * LIMIT_S)


def test_senders_beside_each_other_share_the_limit() -> None:
    async def main(body: EventBody, reader: Reader) -> None:
        await asyncio.gather(body.send(b"6"), body.send(b"100"), body.send(b"8"))

    now, reader = run(main)
    assert reader.taken == [b"6", b"8", b"cut"]
    assert now == pytest.approx(8 + LIMIT_S)


def test_an_error_inside_goes_out_as_it_is() -> None:
    async def main(body: EventBody, reader: Reader) -> None:
        await body.send(b"1")
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        run(main)


def test_a_cancellation_from_outside_stays_one() -> None:
    async def main(body: EventBody, reader: Reader) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_at(LIMIT_S, task.cancel)
        await body.send(b"100")

    with pytest.raises(asyncio.CancelledError):
        run(main)


def test_a_cut_leaves_no_reference_cycle() -> None:
    class Answer:
        """What a response holds while it is sent."""

    seen: list[weakref.ref[Answer]] = []

    async def main(body: EventBody, reader: Reader) -> None:
        answer = Answer()
        seen.append(weakref.ref(answer))
        await body.send(b"100")

    gc.collect()
    gc.disable()
    try:
        run(main)
        assert seen[0]() is None
    finally:
        gc.enable()


def test_silence_is_filled_from_the_last_chunk_on() -> None:
    async def main(body: EventBody, reader: Reader) -> None:
        await asyncio.sleep(2.5)
        await body.send(b"0.0")
        await asyncio.sleep(3.5)
        await body.send(b"0.1")
        await body.send(b"", more=False)

    _, reader = run(main, interval_s=1.0)
    assert reader.taken == [COMMENT] * 2 + [b"0.0"] + [COMMENT] * 3 + [b"0.1", b""]


def test_a_busy_stream_has_no_comment() -> None:
    async def main(body: EventBody, reader: Reader) -> None:
        for _ in range(50):
            await body.send(b"0.9")

    _, reader = run(main, interval_s=1.0)
    assert reader.taken == [b"0.9"] * 50


def test_a_reader_that_is_slow_to_take_one_event_is_given_no_second() -> None:
    async def main(body: EventBody, reader: Reader) -> None:
        for _ in range(4):
            await body.send(b"5")
            await asyncio.sleep(1.5)

    _, reader = run(main, interval_s=1.0, comment_s=3.0)
    assert reader.most_at_once == 1
    assert reader.taken == [b"5", COMMENT] * 3 + [b"5"]


def test_a_comment_that_nobody_takes_is_a_stall() -> None:
    async def main(body: EventBody, reader: Reader) -> None:
        await asyncio.sleep(1000)

    now, reader = run(main, interval_s=1.0, comment_s=100.0)
    assert reader.taken == [b"cut"]
    assert now == pytest.approx(1.0 + LIMIT_S)


def test_a_stall_ends_at_its_moment_however_long_the_silence_may_last() -> None:
    async def main(body: EventBody, reader: Reader) -> None:
        await asyncio.sleep(1)
        await body.send(b"100")

    now, _ = run(main, interval_s=70.0)
    assert now == pytest.approx(1 + LIMIT_S)


def test_nothing_is_left_behind_when_the_answer_fails_beside_a_comment() -> None:
    async def main(body: EventBody, reader: Reader) -> None:
        await asyncio.sleep(1.5)
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        run(main, interval_s=1.0, comment_s=3.0)


def test_what_goes_at_once_is_no_silence_and_waits_for_a_comment_under_way() -> None:
    written: list[bytes] = []

    def write(data: bytes) -> bool:
        written.append(data)
        return True

    async def main(body: EventBody, reader: Reader) -> None:
        for _ in range(4):
            assert body.send_at_once(b"0.1") is None
            await asyncio.sleep(0.8)
        await asyncio.sleep(1.2)  # the comment is on its way
        waiting = body.send_at_once(b"0.2")
        assert waiting is not None
        await waiting

    _, reader = run(main, interval_s=1.0, comment_s=3.0, write=write)
    assert written == [b"0.1"] * 4
    assert reader.taken == [COMMENT, b"0.2"]
