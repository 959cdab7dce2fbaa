"""IteratorEngine keeps the hook contract for an author who only yields tokens."""

from __future__ import annotations

import itertools
import select
import threading
from collections.abc import Callable, Iterator

import pytest

from pocketllm.engine.call import GenerateCall
from pocketllm.engine.iterator_engine import Emission, Item, IteratorEngine
from pocketllm.errors import BackendUnavailableError
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import (
    Capabilities,
    Choice,
    Finish,
    GenerationRequest,
    PromptReport,
    StepBatch,
    TokenFlag,
    TokenLogprob,
)

_handles = itertools.count(1)
STOP_ID = 9


class Scripted(IteratorEngine):
    """Plays what ``script`` yields for a request; ``pause`` holds the engine thread between two steps."""

    def __init__(self, script: Callable[[GenerationRequest], Iterator[Item]], max_batch_size: int = 2) -> None:
        super().__init__()
        self.script = script
        self.pause = threading.Event()
        self.pause.set()
        self.released = 0
        self.step_fails = False
        self.closed: list[int] = []
        self.threads: set[int] = set()
        self._capabilities = Capabilities(name="scripted", max_model_len=64, max_batch_size=max_batch_size)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def before_step(self, num_active: int) -> None:
        assert self.pause.wait(10)
        if self.step_fails:
            raise ZeroDivisionError("the author's mistake")

    def release(self) -> None:
        self.released += 1

    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        self.threads.add(threading.get_ident())
        try:
            yield from self.script(request)
        finally:
            self.closed.append(request.choices[0].handle)


def forever(request: GenerationRequest) -> Iterator[Item]:
    return itertools.cycle([1, 2, 3])


def make_request(num_choices: int = 1, max_tokens: int = 5, seed: int = 0) -> GenerationRequest:
    choices = tuple(Choice(handle=next(_handles), seed=seed + index) for index in range(num_choices))
    params = SamplingParams(max_tokens=max_tokens, n=num_choices)
    return GenerationRequest(prompt_tokens=(4, 5), choices=choices, sampling_params=params, stop_token_ids=(STOP_ID,))


def submit(engine: IteratorEngine, request: GenerationRequest) -> list[int]:
    assert engine.pocketllm_generate(call=GenerateCall(request)) is True
    return [choice.handle for choice in request.choices]


class Reader:
    """Drains an engine's events and knows what each handle got."""

    def __init__(self, engine: IteratorEngine) -> None:
        self.engine = engine
        self.batches: list[StepBatch] = []

    def wait_for(self, done: Callable[[], object]) -> None:
        for _ in range(1000):
            if done():
                return
            select.select([self.engine.events.fileno()], [], [], 0.02)
            self.batches += self.engine.events.drain()
        raise AssertionError(f"it never came: {self.batches}")

    def finish(self, handle: int) -> Finish | None:
        found = [finish for batch in self.batches for finish in batch.finished if finish.handle == handle]
        assert len(found) <= 1
        return found[0] if found else None

    def wait_finish(self, handle: int) -> Finish:
        self.wait_for(lambda: self.finish(handle))
        finish = self.finish(handle)
        assert finish is not None
        return finish

    def rows(self, handle: int) -> list[tuple[int, int]]:
        return [
            (token, flag)
            for batch in self.batches
            for owner, token, flag in zip(batch.handles, batch.tokens, batch.flags, strict=True)
            if owner == handle
        ]


@pytest.fixture
def opened() -> Iterator[Callable[..., tuple[Scripted, Reader]]]:
    engines: list[Scripted] = []

    def make(script: Callable[[GenerationRequest], Iterator[Item]], max_batch_size: int = 2) -> tuple[Scripted, Reader]:
        engine = Scripted(script, max_batch_size)
        engines.append(engine)
        return engine, Reader(engine)

    yield make
    for engine in engines:
        engine.pause.set()
        engine.pocketllm_close(deadline_s=5)


Opened = Callable[..., tuple[Scripted, Reader]]


def test_ends_at_max_tokens_with_the_last_row_and_the_finish_in_one_batch(opened: Opened) -> None:
    engine, reader = opened(forever)
    (handle,) = submit(engine, make_request(max_tokens=4))
    assert reader.wait_finish(handle).reason == "length"
    assert [token for token, _ in reader.rows(handle)] == [1, 2, 3, 1]
    assert handle in reader.batches[-1].handles
    assert engine.closed == [handle]


def test_a_stop_id_is_flagged_and_ends_the_sequence(opened: Opened) -> None:
    engine, reader = opened(lambda request: iter([1, STOP_ID, 2]))
    (handle,) = submit(engine, make_request())
    assert reader.wait_finish(handle).reason == "stop"
    assert reader.rows(handle) == [(1, TokenFlag.NONE), (STOP_ID, TokenFlag.STOP)]


def test_a_stop_id_as_the_last_allowed_token_ends_with_stop(opened: Opened) -> None:
    engine, reader = opened(lambda request: iter([1, STOP_ID]))
    (handle,) = submit(engine, make_request(max_tokens=2))
    assert reader.wait_finish(handle).reason == "stop"


def test_an_exhausted_iterator_ends_with_stop(opened: Opened) -> None:
    engine, reader = opened(lambda request: iter([1, 2]))
    (handle,) = submit(engine, make_request())
    assert reader.wait_finish(handle).reason == "stop"
    assert len(reader.rows(handle)) == 2


def test_a_raising_iterator_ends_its_own_stream_alone(opened: Opened) -> None:
    def script(request: GenerationRequest) -> Iterator[Item]:
        yield 1
        if request.choices[0].seed == 1:
            raise ValueError("the author's mistake")
        yield from (1, 2, 3)

    engine, reader = opened(script)
    good, bad = submit(engine, make_request(num_choices=2, max_tokens=3))
    assert reader.wait_finish(bad) == Finish(handle=bad, reason="error", error="ValueError: the author's mistake")
    assert reader.wait_finish(good).reason == "length"


def test_each_choice_is_a_sequence_of_its_own(opened: Opened) -> None:
    engine, reader = opened(lambda request: iter([request.choices[0].seed, STOP_ID]))
    handles = submit(engine, make_request(num_choices=3, seed=5))
    for index, handle in enumerate(handles):
        reader.wait_finish(handle)
        assert reader.rows(handle)[0][0] == 5 + index


def test_one_batch_holds_a_step_of_all_sequences(opened: Opened) -> None:
    engine, reader = opened(forever)
    engine.pause.clear()
    handles = submit(engine, make_request(num_choices=2, max_tokens=3))
    engine.pause.set()
    for handle in handles:
        reader.wait_finish(handle)
    assert [batch.handles for batch in reader.batches] == [handles] * 3


def test_the_queue_is_first_in_first_out(opened: Opened) -> None:
    engine, reader = opened(forever, max_batch_size=1)
    engine.pause.clear()
    handles = [submit(engine, make_request(max_tokens=2))[0] for _ in range(3)]
    reader.wait_for(lambda: engine.pocketllm_stats().num_running == 1)
    stats = engine.pocketllm_stats()
    assert (stats.num_waiting, stats.num_slots, stats.num_free_slots) == (2, 1, 0)
    engine.pause.set()
    for handle in handles:
        reader.wait_finish(handle)
    assert [finish.handle for batch in reader.batches for finish in batch.finished] == handles
    assert len(engine.threads) == 1


def test_cancel_ends_running_and_queued_sequences_between_steps(opened: Opened) -> None:
    engine, reader = opened(forever, max_batch_size=1)
    running = submit(engine, make_request(max_tokens=10**9))[0]
    queued = submit(engine, make_request())[0]
    reader.wait_for(lambda: reader.rows(running))
    engine.pocketllm_cancel(handle=queued, reason="client")
    assert reader.wait_finish(queued).reason == "cancelled"
    assert reader.rows(queued) == []
    for _ in range(2):
        engine.pocketllm_cancel(handle=running, reason="client")
    assert reader.wait_finish(running).reason == "cancelled"
    engine.pocketllm_cancel(handle=running, reason="client")
    engine.pocketllm_cancel(handle=12345678, reason="client")
    assert engine.closed == [running]
    stats = engine.pocketllm_stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_slots) == (0, 0, 1)


def test_the_counters_tell_tokens_and_steps(opened: Opened) -> None:
    engine, reader = opened(lambda request: iter([1, 2, STOP_ID]))
    (handle,) = submit(engine, make_request())
    reader.wait_finish(handle)
    stats = engine.pocketllm_stats()
    assert (stats.num_prompt_tokens, stats.num_generated_tokens, stats.num_steps) == (2, 3, 3)


def test_an_emission_brings_text_and_log_probabilities(opened: Opened) -> None:
    def script(request: GenerationRequest) -> Iterator[Item]:
        yield PromptReport(handle=0, num_cached_tokens=1)
        yield Emission(token_id=1, logprob=-0.5, top=[(1, -0.5)])
        yield Emission(text="brought", reasoning_content="why")
        yield Emission(token_id=STOP_ID, logprob=-0.1)

    engine, reader = opened(script)
    (handle,) = submit(engine, make_request(max_tokens=3))
    assert reader.wait_finish(handle).reason == "stop"
    assert [report for batch in reader.batches for report in batch.prompts] == [PromptReport(handle, 1)]
    logprobs = [entry for batch in reader.batches for entry in batch.logprobs]
    assert logprobs == [TokenLogprob(row=0, logprob=-0.5, top=[(1, -0.5)])]
    assert [flag for _, flag in reader.rows(handle)] == [TokenFlag.NONE, TokenFlag.TEXT, TokenFlag.STOP]
    (extra,) = [extra for batch in reader.batches for extra in batch.extras]
    assert (extra.text, extra.reasoning_content) == ("brought", "why")


def test_an_emission_can_end_the_sequence(opened: Opened) -> None:
    engine, reader = opened(lambda request: iter([Emission(token_id=1, finish_reason="tool_calls"), 2]))
    (handle,) = submit(engine, make_request())
    assert reader.wait_finish(handle).reason == "tool_calls"
    assert len(reader.rows(handle)) == 1


def test_close_ends_everything_before_it_returns(opened: Opened) -> None:
    engine, reader = opened(forever, max_batch_size=1)
    handles = [submit(engine, make_request(max_tokens=10**9))[0] for _ in range(3)]
    reader.wait_for(lambda: reader.rows(handles[0]))
    engine.pocketllm_close(deadline_s=5)
    reader.batches += engine.events.drain()
    assert [reader.finish(handle) for handle in handles] == [Finish(handle, "cancelled") for handle in handles]
    assert engine.closed == handles[:1]
    engine.pocketllm_close(deadline_s=5)
    assert engine.released == 1
    with pytest.raises(BackendUnavailableError, match="closed"):
        submit(engine, make_request())


def test_close_does_not_wait_for_a_stuck_iterator(opened: Opened) -> None:
    leave = threading.Event()

    def stuck(request: GenerationRequest) -> Iterator[Item]:
        yield 1
        leave.wait(30)
        yield 2

    engine, reader = opened(stuck)
    (handle,) = submit(engine, make_request())
    reader.wait_for(lambda: reader.rows(handle))
    engine.pocketllm_close(deadline_s=0.05)
    reader.batches += engine.events.drain()
    assert reader.finish(handle) == Finish(handle, "cancelled")
    leave.set()
    engine._thread.join(10) if engine._thread else None
    reader.batches += engine.events.drain()
    assert [token for token, _ in reader.rows(handle)] == [1]


def test_an_error_of_the_step_itself_breaks_the_engine(opened: Opened) -> None:
    engine, reader = opened(forever)
    engine.step_fails = True
    handles = submit(engine, make_request(num_choices=2))
    for handle in handles:
        finish = reader.wait_finish(handle)
        assert finish.reason == "error"
        assert "ZeroDivisionError" in (finish.error or "")
    reader.wait_for(lambda: any(batch.fatal for batch in reader.batches))
    with pytest.raises(BackendUnavailableError):
        submit(engine, make_request())


def test_requests_from_many_threads_all_end_once(opened: Opened) -> None:
    engine, reader = opened(forever, max_batch_size=4)
    handles: list[int] = []

    def ask() -> None:
        for _ in range(10):
            handles.extend(submit(engine, make_request(num_choices=2, max_tokens=3)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(handles) == 80
    for handle in handles:
        assert reader.wait_finish(handle).reason == "length"
        assert len(reader.rows(handle)) == 3


class IndexOnly:
    """An integer of an array library, as far as Python knows."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    "item, error",
    [(IndexOnly(), None), (SystemExit("bye"), "SystemExit: bye"), ("text", "TypeError"), (1.5, "TypeError")],
)
def test_what_an_author_easily_yields_or_raises_ends_its_own_stream_alone(item: object, error: str | None) -> None:
    def script(request: GenerationRequest) -> Iterator[Item]:
        if request.prompt_tokens == (2,):
            yield 1
            return
        if isinstance(item, BaseException):
            raise item
        yield item  # type: ignore[misc]  # what an author may yield by mistake

    engine = Scripted(script)
    try:
        bad, good = next(_handles), next(_handles)
        for handle, prompt in ((bad, (1,)), (good, (2,))):
            request = GenerationRequest(prompt_tokens=prompt, choices=(Choice(handle, 0),))
            assert engine.pocketllm_generate(GenerateCall(request))
        finished: dict[int, Finish] = {}
        tokens: dict[int, list[int]] = {bad: [], good: []}
        while len(finished) < 2:
            assert select.select([engine.events.fileno()], [], [], 10)[0]
            for batch in engine.events.drain():
                assert batch.fatal is None
                for handle, token in zip(batch.handles, batch.tokens, strict=True):
                    tokens[handle].append(token)
                finished.update({finish.handle: finish for finish in batch.finished})
        assert (finished[good].reason, tokens[good]) == ("stop", [1])
        if error is None:
            assert (finished[bad].reason, tokens[bad]) == ("stop", [7])
        else:
            assert finished[bad].reason == "error"
            assert (finished[bad].error or "").startswith(error)
    finally:
        engine.pocketllm_close(1.0)
        engine.events.close()
