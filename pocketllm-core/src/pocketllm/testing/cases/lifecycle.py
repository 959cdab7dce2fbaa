"""Opening, closing, reopening, and hooks that do not make their caller wait."""

from __future__ import annotations

import time
from collections.abc import Callable

from pocketllm.testing.case import case
from pocketllm.testing.rig import SETTLE_S, Rig, compare_held
from pocketllm.testing.rules import RuleBroken, broken
from pocketllm.types import Capabilities, Command

HOOK_LIMIT_S = 0.25
"""Far above the millisecond that is asked for, far below a blocking call; the fastest of several calls counts."""
NUM_CALLS = 5
NUM_QUIET_LOOKS = 20


@case("L1")
def capabilities_are_complete_and_constant(rig: Rig) -> None:
    """The card is filled in, and the same before and after work."""
    has = rig.capabilities
    for name in ("max_model_len", "max_batch_size", "vocab_size"):
        if getattr(has, name) < 1:
            raise broken("L1", f"{name} = {getattr(has, name)}: declare the real number")
    if not has.name:
        raise broken("L1", "capabilities.name is empty")
    outside = [token for token in has.eos_token_ids if not 0 <= token < has.vocab_size]
    if outside:
        raise broken("L1", f"eos_token_ids {outside} are outside the vocabulary of {has.vocab_size}")
    rig.ask(max_tokens=2)
    now: Capabilities = rig.hooks.pocketllm_capabilities()
    if now != has:
        raise broken("L1", "the capabilities changed while the engine was open")


@case("L2")
def close_ends_what_is_active(rig: Rig) -> None:
    """Closed with running and queued requests: each has its one final event when close returns."""
    other = rig.another()
    sents = [other.send(other.long_request(index)) for index in range(other.capabilities.max_batch_size + 2)]
    sents[0].wait_rows(1)
    other.close()
    for sent in sents:
        sent.healthy = False  # an engine may call its own shutdown an error
        found = sent.violations()
        if found:
            raise broken("L2", f"after close: {found[0]}")


@case("L2")
def close_frees_threads_and_descriptors(rig: Rig) -> None:
    """Opened, used and closed: what it held is free. (Run twice when not: the first engine may make what all share.)"""
    before = rig.held()
    other = rig.another()
    other.ask(max_tokens=2)
    other.close()
    found = compare_held(before, rig.held())
    give_up_at = time.monotonic() + SETTLE_S
    while found and time.monotonic() < give_up_at:
        time.sleep(0.02)
        found = compare_held(before, rig.held())
    if found:
        raise RuleBroken(*found)


@case("L3")
def close_twice(rig: Rig) -> None:
    """The second close returns at once and does nothing, also in an engine that never worked."""
    other = rig.another()
    other.hooks.pocketllm_close(deadline_s=5.0)
    try:
        other.hooks.pocketllm_close(deadline_s=5.0)
    except Exception as exc:  # the engine may raise anything; the case reports it
        raise broken("L3", f"the second close raised {exc!r}") from exc
    finally:
        other.close()


@case("L4")
def reopened_it_answers_as_before(rig: Rig) -> None:
    """Another engine of the same arguments gives the same greedy answer."""
    first = rig.ask(max_tokens=8)
    other = rig.another()
    try:
        again = other.ask(max_tokens=8)
        found = other.check_streams()
    finally:
        other.close()
    if found:
        raise broken("L4", f"after reopening: {found[0]}")
    if rig.deterministic and again != first:
        raise broken("L4", f"reopened, it gave {again} instead of {first}")


@case("H1")
def generate_only_enqueues(rig: Rig) -> None:
    """The hook returns at once: idle, and while sequences run."""
    seconds = {"idle": _fastest(lambda index: _timed(lambda: rig.send(rig.request(rig.prompt(index), max_tokens=8))))}
    seconds["busy"] = _fastest(lambda index: _while_busy(rig, lambda: rig.send(rig.request(max_tokens=8))))
    for moment, value in seconds.items():
        if value > HOOK_LIMIT_S:
            raise broken("H1", f"pocketllm_generate took {value:.2f} s at best in an engine that was {moment}")


@case("H2")
def stats_do_not_wait(rig: Rig) -> None:
    """The hook answers at once while sequences run."""
    seconds = _fastest(lambda index: _while_busy(rig, rig.stats))
    if seconds > HOOK_LIMIT_S:
        raise broken("H2", f"pocketllm_stats took {seconds:.2f} s at best while the engine was busy")


@case("H3")
def draining_does_not_wait(rig: Rig) -> None:
    """Core drains whenever it is awake, also for another's sake: at once, with nothing there or between two steps."""
    rig.ask(max_tokens=2)
    seconds = {"idle": _fastest(lambda index: _timed(rig.recorder.drain_now))}
    seconds["busy"] = _fastest(lambda index: _while_busy(rig, rig.recorder.drain_now))
    for moment, value in seconds.items():
        if value > HOOK_LIMIT_S:
            raise broken("H3", f"drain() took {value:.2f} s at best in an engine that was {moment}")


@case("H3")
def the_descriptor_is_quiet_while_nothing_waits(rig: Rig) -> None:
    """A descriptor that stays readable behind a drain would keep core awake without end."""
    rig.ask(max_tokens=2)
    give_up_at = time.monotonic() + SETTLE_S
    num_quiet = 0  # in a row: the recorder's drain may clear it for an instant
    while num_quiet < NUM_QUIET_LOOKS:
        num_quiet = 0 if rig.recorder.is_readable() else num_quiet + 1
        if time.monotonic() > give_up_at:
            raise broken("H3", f"the descriptor of an idle engine is still readable after {SETTLE_S:g} s of draining")
        time.sleep(0.002)


@case("H4")
def a_heartbeat_is_quiet_while_all_is_well(rig: Rig) -> None:
    """Idle and while a sequence runs: an engine that has the hook answers at once, and has nothing to say."""
    if not rig.hooks.pocketllm_heartbeat.get_hookimpls():
        return
    reasons: list[object] = []

    def ask() -> None:
        reasons.append(rig.hooks.pocketllm_heartbeat())

    seconds = {"idle": _fastest(lambda index: _timed(ask)), "busy": _fastest(lambda index: _while_busy(rig, ask))}
    for moment, value in seconds.items():
        if value > HOOK_LIMIT_S:
            raise broken("H4", f"pocketllm_heartbeat took {value:.2f} s at best in an engine that was {moment}")
    rig.ask(max_tokens=2)  # in a child the engine's own answer comes with its events
    complaint = rig.recorder.fatal or next((reason for reason in reasons if reason is not None), None)
    if complaint is not None:
        raise broken("H4", f"pocketllm_heartbeat gives a working engine up: {complaint!r}")


@case("H5")
def an_unknown_command_is_answered_with_none(rig: Rig) -> None:
    """A caller must not wait for a ticket that nobody works on."""
    ticket = rig.hooks.pocketllm_control(command=Command("pocketllm kit: no such command"))
    if ticket is not None:
        raise broken("H5", f"pocketllm_control answered {ticket!r} to a command that the card does not name")


def _while_busy(rig: Rig, call: Callable[[], object]) -> float:
    running = rig.send(rig.long_request(0)).wait_rows(1)
    seconds = _timed(call)
    rig.cancel(running.handle)
    running.wait()
    return seconds


def _fastest(measure: Callable[[int], float]) -> float:
    return min(measure(index) for index in range(NUM_CALLS))


def _timed(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin
