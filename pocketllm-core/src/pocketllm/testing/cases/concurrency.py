"""Many requests at once: nothing is mixed up, nobody starves."""

from __future__ import annotations

import threading
from typing import Any

from pocketllm.testing.case import case
from pocketllm.testing.rig import Rig, Sent
from pocketllm.testing.rules import broken

MAX_TOKENS = 12


@case("K1")
def each_gets_what_it_gets_alone(rig: Rig) -> None:
    """More requests than places, sent from several threads, against the same requests one by one."""
    num_requests = 2 * rig.capabilities.max_batch_size + 2
    prompts = [rig.prompt(index, 12 + index % 5) for index in range(num_requests)]
    alone = [rig.ask(prompt, max_tokens=MAX_TOKENS) for prompt in prompts]
    if rig.deterministic and len({tuple(answer) for answer in alone}) < 2:
        raise broken("K1", "all prompts have the same answer, so a swap could not be seen: use another model")
    together = _send_from_threads(rig, prompts)
    if not rig.deterministic:
        return  # answers cannot be compared; their streams are judged all the same
    for index, sent in enumerate(together):
        got = sent.tokens()
        if got == alone[index]:
            continue
        own = _common_prefix(got, alone[index])
        best = max(range(num_requests), key=lambda other: _common_prefix(got, alone[other]))
        if _common_prefix(got, alone[best]) > own or own == 0:
            message = f"request {index} got {got}, its own answer is {alone[index]}"
            owner = "" if best == index else f"; request {best} has {alone[best]}"
            raise broken("K1", message + owner)


@case("K2")
def more_than_fit_are_served(rig: Rig) -> None:
    """Three times as many requests as there are places."""
    requests = [rig.request(rig.prompt(index), max_tokens=3) for index in range(3 * rig.capabilities.max_batch_size)]
    for sent in [rig.send(request) for request in requests]:
        if sent.wait().reason not in ("length", "stop"):
            raise broken("K2", f'a request that had to wait ended in "{sent.reason}"')


@case("K2")
def sent_from_many_threads(rig: Rig) -> None:
    """Eight threads enqueue and the engine loses none."""
    sents = _send_from_threads(rig, [rig.prompt(index) for index in range(16)])
    reasons = {sent.reason for sent in sents}
    if not reasons <= {"length", "stop"}:
        raise broken("K2", f"requests from many threads ended in {sorted(reasons)}")


@case("F13")
def sequences_advance_together(rig: Rig) -> None:
    """Two choices of one request overlap in time; an engine without batching has one place."""
    if not rig.capabilities.supports_batch:
        if rig.capabilities.max_batch_size != 1:
            raise broken("F13", f"max_batch_size = {rig.capabilities.max_batch_size} without supports_batch")
        return
    if rig.capabilities.max_batch_size < 2:
        raise broken("F13", "supports_batch with max_batch_size = 1: declare one or give the kit a wider engine")
    sent = rig.run(rig.request(max_tokens=MAX_TOKENS, seeds=(1, 2)))
    spans = []
    for handle in sent.handles:
        batches = rig.recorder.batches(sent.first_batch)
        steps = [index for index, batch in enumerate(batches) if handle in batch.handles]
        spans.append((steps[0], steps[-1]) if steps else (0, 0))
    (start, end), (other_start, other_end) = spans
    if other_start > end or start > other_end:
        raise broken("F13", "one sequence ended before the other began")


@case("F14")
def a_stream_does_not_depend_on_its_neighbours(rig: Rig) -> None:
    """Declared: identical tokens in every company. Undeclared: an engine promises nothing."""
    if not rig.capabilities.batch_invariant:
        return
    prompts = [rig.prompt(index, 9 + 3 * index) for index in range(rig.capabilities.max_batch_size + 1)]
    sampling: dict[str, Any] = {"temperature": 1.0} if rig.capabilities.per_request_sampling else {}
    if not rig.deterministic:
        return
    alone = [rig.ask(prompt, max_tokens=MAX_TOKENS, **sampling) for prompt in prompts]
    for sent in [rig.send(rig.request(prompt, max_tokens=MAX_TOKENS, **sampling)) for prompt in prompts]:
        expected = alone[prompts.index(sent.request.prompt_tokens)]
        if sent.wait().tokens() != expected:
            raise broken("F14", f"in company: {sent.tokens()}, alone: {expected}")


def _send_from_threads(rig: Rig, prompts: list[tuple[int, ...]]) -> list[Sent]:
    """Send one request for each prompt from eight threads; the records in the order of the prompts, all ended."""
    requests = [rig.request(prompt, max_tokens=MAX_TOKENS) for prompt in prompts]
    errors: list[BaseException] = []
    sents: dict[int, Sent] = {}

    def send(indices: range) -> None:
        try:
            for index in indices:
                sents[index] = rig.send(requests[index])
        except Exception as exc:  # noqa: BLE001  # the engine may raise anything; the case reports it
            errors.append(exc)

    threads = [threading.Thread(target=send, args=(range(first, len(prompts), 8),)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise broken("K2", f"enqueueing from a thread raised {errors[0]!r}")
    return [sents[index].wait() for index in range(len(prompts))]


def _common_prefix(left: list[int], right: list[int]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
