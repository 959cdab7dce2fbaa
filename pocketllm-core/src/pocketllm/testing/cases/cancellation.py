"""Cancellation at every moment of a request's life."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable

from pocketllm.testing.case import case
from pocketllm.testing.rig import Rig, Sent
from pocketllm.testing.rules import broken

MAX_BATCHES_AFTER = 3
"""In-thread: a step that is under way may still post, and so may one that was planned already."""
MIN_ATTEMPTS = 8
"""A fast engine may reach the natural end before the cancel does; a deaf one reaches it every time."""
ATTEMPTS_S = 5.0
"""Attempts of an engine that is done in milliseconds are repeated this long: a busy machine may lose many of them."""
TOKEN_INDICES = (1, 2, 3, 4, 5, 6, 7, 8)


@case("C1")
def before_the_first_event(rig: Rig) -> None:
    """Cancelled as soon as it is accepted."""
    _until_cancelled(rig, lambda attempt: _cancel_after_sending(rig, attempt))


@case("C1")
def during_prefill(rig: Rig) -> None:
    """Cancelled while a prompt of half the context is read."""

    def attempt(index: int) -> Sent:
        limit = rig.capabilities.max_model_len
        prompt = rig.prompt(index, limit // 2)
        sent = rig.send(rig.request(prompt, max_tokens=limit - len(prompt)))
        if rig.settings.placement == "child":
            time.sleep(0.004 / 2 ** (index % MIN_ATTEMPTS))  # a child's counters come too late to wait for
        else:
            rig.recorder.wait(lambda: rig.stats().num_running > 0 or sent.ended, 0.2)
        _cancel_and_wait(rig, sent)
        return sent

    _until_cancelled(rig, attempt)


@case("C1")
def at_every_token(rig: Rig) -> None:
    """Cancelled on the very row that brings the first token, the second, and so on."""
    for num_rows in TOKEN_INDICES:
        _until_cancelled(rig, functools.partial(_cancel_at_row, rig, num_rows))


@case("C1")
def while_queued(rig: Rig) -> None:
    """Cancelled while it waits for a place: it ends although the places stay taken."""
    running = [rig.send(rig.long_request(index)) for index in range(rig.capabilities.max_batch_size)]
    queued = rig.send(rig.long_request(len(running)))
    _cancel_and_wait(rig, queued)
    if queued.reason not in ("cancelled", "length", "stop"):
        raise broken("C1", f'a cancelled queued request ended in "{queued.reason}"')
    for sent in running:
        rig.cancel(sent.handle)
        sent.wait()


@case("C1")
def one_choice_of_two(rig: Rig) -> None:
    """Only the cancelled choice ends; the other one continues until it is cancelled, too."""

    def attempt(index: int) -> Sent:
        sent = rig.send(rig.long_request(index, seeds=(1, 2)))
        sent.wait_rows(2)
        first, second = sent.handles
        rig.cancel(first)
        if not rig.recorder.wait(lambda: rig.recorder.finish(first) is not None, rig.settings.stream_timeout_s):
            raise broken("C1", "the cancelled choice of two never ended")
        rig.cancel(second)
        return sent.wait()

    _until_cancelled(rig, attempt)


@case("C2")
def after_the_end(rig: Rig) -> None:
    """Cancelling a finished request does nothing."""
    sent = rig.run(rig.request(max_tokens=2))
    for _ in range(3):
        _harmless(rig, sent.handle, "a finished sequence")
    rig.run(rig.request(rig.prompt(1), max_tokens=2))


@case("C2")
def an_unknown_handle(rig: Rig) -> None:
    """Cancelling what never was does nothing, now and for later requests."""
    for handle in (0, 2**62, 2**63 - 1):
        _harmless(rig, handle, "an unknown handle")
    request = rig.request(max_tokens=4)
    _harmless(rig, request.choices[0].handle, "a handle that comes later")
    if rig.run(request).reason == "cancelled":
        raise broken("C2", "a cancel sent before the request was accepted ended it")


@case("C2")
def twice(rig: Rig) -> None:
    """The second cancel of the same sequence does nothing."""

    def attempt(index: int) -> Sent:
        sent = rig.send(rig.long_request(index)).wait_rows(2)
        for _ in range(3):
            _harmless(rig, sent.handle, "a cancelled sequence")
        return sent.wait()

    _until_cancelled(rig, attempt)


@case("C2")
def from_many_threads(rig: Rig) -> None:
    """Eight threads cancel the same sequences at once, while they start."""
    sents = [rig.send(rig.long_request(index)) for index in range(rig.capabilities.max_batch_size + 1)]
    errors: list[BaseException] = []

    def cancel_all() -> None:
        try:
            for sent in sents:
                rig.hooks.pocketllm_cancel(handle=sent.handle, reason="client")
        except Exception as exc:  # noqa: BLE001  # the engine may raise anything; the case reports it
            errors.append(exc)

    threads = [threading.Thread(target=cancel_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise broken("C2", f"pocketllm_cancel raised {errors[0]!r}")
    for sent in sents:
        sent.wait()


@case("C3")
def the_others_go_on(rig: Rig) -> None:
    """While one sequence is cancelled, its neighbours get just what they get alone."""
    width = max(2, rig.capabilities.max_batch_size)
    alone = [rig.ask(rig.prompt(index), max_tokens=12) for index in range(1, width)]
    victim = rig.send(rig.long_request(0))
    others = [rig.send(rig.request(rig.prompt(index), max_tokens=12)) for index in range(1, width)]
    victim.wait_rows(2)
    _cancel_and_wait(rig, victim)
    for index, (sent, expected) in enumerate(zip(others, alone, strict=True), 1):
        sent.wait()
        if sent.reason == "cancelled":
            raise broken("C3", f"request {index} was cancelled with its neighbour")
        if rig.deterministic and rig.capabilities.batch_invariant and sent.tokens() != expected:
            raise broken("C3", f"request {index} got {sent.tokens()} instead of {expected}")


def _until_cancelled(rig: Rig, attempt: Callable[[int], Sent]) -> None:
    reasons: list[str] = []
    end = time.monotonic() + ATTEMPTS_S
    while len(reasons) < MIN_ATTEMPTS or time.monotonic() < end:
        reasons.append(attempt(len(reasons)).reason)
        if reasons[-1] == "cancelled":
            return
        if reasons[-1] == "error":
            break
    shown = ", ".join(sorted(set(reasons)))
    raise broken("C1", f"none of {len(reasons)} attempts ended as cancelled, but in: {shown}")


def _cancel_after_sending(rig: Rig, index: int) -> Sent:
    sent = rig.send(rig.long_request(index))
    _cancel_and_wait(rig, sent)
    return sent


def _cancel_at_row(rig: Rig, num_rows: int, index: int) -> Sent:
    request = rig.long_request(index)
    handle = request.choices[0].handle
    marks: list[int] = []

    def act() -> None:  # runs on the recording thread, on the row itself
        marks.append(rig.cancel(handle))

    sent = rig.send(request, before=lambda _: rig.recorder.at_row(handle, num_rows, act)).wait()
    _check_rows_after(rig, sent, marks[0] if marks else None)
    return sent


def _cancel_and_wait(rig: Rig, sent: Sent) -> None:
    mark = rig.cancel(sent.handle)
    sent.wait()
    _check_rows_after(rig, sent, mark)


def _check_rows_after(rig: Rig, sent: Sent, mark: int | None) -> None:
    if mark is None or rig.settings.placement == "child":
        return  # the cancel is still on its way to the other process
    late = sum(sent.handle in batch.handles for batch in rig.recorder.batches(mark))
    if late > MAX_BATCHES_AFTER:
        raise broken("C1", f"{late} steps gave the sequence a row after it was cancelled")


def _harmless(rig: Rig, handle: int, what: str) -> None:
    try:
        rig.cancel(handle)
    except Exception as exc:  # the engine may raise anything; the case reports it
        raise broken("C2", f"cancelling {what} raised {exc!r}") from exc
