"""A host's timers: one for each request, and the engine's heartbeat."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from pocketllm.host.record import RequestRecord
from pocketllm.host.timers import HostTimers
from pocketllm.types import GenerationRequest


def _record() -> RequestRecord:
    return RequestRecord(GenerationRequest(prompt="x"), threading.RLock(), lambda record: None)


def test_a_deadline_goes_off_once() -> None:
    timers, record = HostTimers(heartbeat_s=1.0), _record()
    timers.set_deadline(record, 5.0)
    assert timers.next() == 5.0
    assert timers.take_due(4.9).deadlines == []
    due = timers.take_due(5.0)
    assert (due.deadlines, due.graces, due.heartbeat) == ([record], [], False)
    assert timers.take_due(9.0).deadlines == []
    assert timers.next() is None


def test_a_grace_takes_the_deadlines_place() -> None:
    timers, record = HostTimers(heartbeat_s=1.0), _record()
    timers.set_deadline(record, 5.0)
    timers.start_grace(record, 8.0)
    assert timers.next() == 8.0
    assert timers.take_due(7.0).deadlines == []
    assert timers.take_due(8.0).graces == [record]


def test_a_heartbeat_is_due_again_and_again_until_it_stops() -> None:
    timers = HostTimers(heartbeat_s=2.0)
    timers.start_heartbeat(10.0)
    assert [timers.take_due(now).heartbeat for now in (11.0, 12.0, 13.0, 14.5, 16.0, 16.5)] == [
        False, True, False, True, False, True,
    ]  # fmt: skip
    timers.stop_heartbeat()
    assert timers.next() is None
    assert not timers.take_due(99.0).heartbeat


@given(
    st.lists(st.tuples(st.sampled_from(["deadline", "grace", "forget", "due"]), st.integers(0, 3), st.integers(0, 9)))
)
def test_no_request_ever_has_two_timers(actions: list[tuple[str, int, int]]) -> None:
    """Against the slow way: one dict from request to its kind and time."""
    timers, records = HostTimers(heartbeat_s=1.0), [_record() for _ in range(4)]
    expected: dict[RequestRecord, tuple[str, float]] = {}
    for action, index, at in actions:
        record = records[index]
        if action == "deadline" and record not in expected:
            timers.set_deadline(record, at)
            expected[record] = ("deadline", at)
        elif action == "grace":
            timers.start_grace(record, at)
            expected[record] = ("grace", at)
        elif action == "forget":
            timers.forget(record)
            expected.pop(record, None)
        elif action == "due":
            due = timers.take_due(at)
            gone = {
                kind: {r for r, (k, when) in expected.items() if k == kind and when <= at}
                for kind in ("deadline", "grace")
            }
            assert (set(due.deadlines), set(due.graces)) == (gone["deadline"], gone["grace"])
            expected = {r: timer for r, timer in expected.items() if r not in gone["deadline"] | gone["grace"]}
        assert timers.next() == min((when for _, when in expected.values()), default=None)
