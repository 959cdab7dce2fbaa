"""Backends that each break one rule: the echo engine with one fault. They are the kit's own test data."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from pocketllm.checkpoint import Checkpoint
from pocketllm.engine.call import GenerateCall
from pocketllm.engine.iterator_engine import Item
from pocketllm.engine.outbox import Outbox
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import UnsupportedFeatureError
from pocketllm.hookspecs import LoadReport, hookimpl
from pocketllm.types import (
    BackendInfo,
    EngineStats,
    GenerationRequest,
    Offer,
    OptionSpec,
    PromptReport,
    StepBatch,
)
from pocketllm_echo.engine import EchoEngine

replace = msgspec.structs.replace


class Broken:
    """The backend of one faulty engine; the decorator of its class."""

    def __init__(self, engine: type[EchoEngine]) -> None:
        self.engine = engine
        self.name = engine.__name__.lower()

    @hookimpl
    def pocketllm_backend(self) -> BackendInfo:
        return BackendInfo(name=self.name, options=(OptionSpec(name="capability_set", type="str"),))

    @hookimpl
    def pocketllm_probe(self, checkpoint: Checkpoint, args: EngineArgs) -> Offer:
        return Offer(rank=0, reason="test data")

    @hookimpl
    def pocketllm_open(self, args: EngineArgs, checkpoint: Checkpoint, report: LoadReport) -> EchoEngine:
        return self.engine(args, checkpoint)


class Tampered(EchoEngine):
    """Everything is right until the events are posted: ``tamper`` turns each batch into what is posted instead."""

    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        self._events = _TamperedOutbox(self.tamper)

    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        raise NotImplementedError


class _TamperedOutbox(Outbox):
    def __init__(self, tamper: Callable[[StepBatch], list[StepBatch]]) -> None:
        super().__init__()
        self._tamper = tamper

    def post(self, batch: StepBatch) -> None:
        for changed in self._tamper(batch):
            super().post(changed)


# ---------------------------------------------------------------------------------------------------------- streams


@Broken
class Good(EchoEngine):
    """No fault at all."""


@Broken
class NeverEnds(Tampered):
    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        return [replace(batch, finished=[])]


@Broken
class EndsTwice(Tampered):
    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        return [batch, StepBatch(finished=batch.finished)] if batch.finished else [batch]


@Broken
class EmitsAfterTheEnd(Tampered):
    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        if not batch.finished:
            return [batch]
        return [batch, StepBatch(handles=[batch.finished[0].handle], tokens=[5], flags=[0])]


@Broken
class UnknownReason(Tampered):
    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        return [replace(batch, finished=[replace(finish, reason="eos") for finish in batch.finished])]


@Broken
class EmptyStream(Tampered):
    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        return [StepBatch(finished=batch.finished)]


@Broken
class OneTokenTooMany(EchoEngine):
    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool:
        params = call.request.sampling_params
        more = replace(params, max_tokens=(params.max_tokens or 0) + 1)
        return super().pocketllm_generate(call=GenerateCall(replace(call.request, sampling_params=more)))


@Broken
class UnflaggedStop(Tampered):
    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        return [replace(batch, flags=[0] * len(batch.flags))]


@Broken
class RaggedColumns(Tampered):
    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        return [replace(batch, flags=batch.flags[1:])]


@Broken
class OutsideTheVocabulary(Tampered):
    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        return [
            replace(
                batch, tokens=[token if flag else 10**6 for token, flag in zip(batch.tokens, batch.flags, strict=True)]
            )
        ]


@Broken
class LatePromptReport(EchoEngine):
    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        for item in super().tokens(request):
            yield item
            yield PromptReport(handle=0)


@Broken
class MissingLogprobs(Tampered):
    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        return [replace(batch, logprobs=[])]


@Broken
class DiesInTheMiddle(EchoEngine):
    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        yield from itertools.islice(super().tokens(request), 2)
        raise RuntimeError("out of luck")


@Broken
class TakesTheProcessDown(EchoEngine):
    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        for index, item in enumerate(super().tokens(request)):
            if index == 6:
                os._exit(3)
            yield item


# ----------------------------------------------------------------------------------------------------- cancellation


@Broken
class DeafToCancel(EchoEngine):
    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        pass


@Broken
class SlowToCancel(EchoEngine):
    """Notices a cancel twenty steps late."""

    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        self._due: list[tuple[int, int]] = []

    def before_step(self, num_active: int) -> None:
        while self._due and self._due[0][0] <= self._num_steps:
            super().pocketllm_cancel(handle=self._due.pop(0)[1], reason="client")

    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        self._due.append((self._num_steps + 20, handle))


@Broken
class RaisesOnUnknownHandles(EchoEngine):
    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        if handle not in self._handles:
            raise KeyError(handle)
        super().pocketllm_cancel(handle=handle, reason=reason)


@Broken
class CancelsEverything(EchoEngine):
    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        for each in list(self._handles):
            super().pocketllm_cancel(handle=each, reason=reason)


@Broken
class HangsInCancel(EchoEngine):
    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        time.sleep(3600)


# ------------------------------------------------------------------------------------------------------------ leaks


@Broken
class LeaksASlot(EchoEngine):
    """A cancelled sequence's place is never given back."""

    leaked = 0

    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        self.leaked += handle in self._handles
        super().pocketllm_cancel(handle=handle, reason=reason)

    @hookimpl
    def pocketllm_stats(self) -> EngineStats:
        stats = super().pocketllm_stats()
        return replace(stats, num_free_slots=max(0, stats.num_free_slots - self.leaked))


@Broken
class LeaksBlocks(EchoEngine):
    @hookimpl
    def pocketllm_stats(self) -> EngineStats:
        stats = super().pocketllm_stats()
        return replace(stats, num_blocks=10**6, num_free_blocks=10**6 - stats.num_generated_tokens)


@Broken
class LeaksDescriptors(EchoEngine):
    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        os.dup(0)
        return super().tokens(request)


@Broken
class LeaksThreads(EchoEngine):
    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        return super().tokens(request)


@Broken
class LeavesItsThreadBehind(EchoEngine):
    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


# ------------------------------------------------------------------------------------------------------ concurrency


@Broken
class SwapsTwoStreams(Tampered):
    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        if batch.finished or len(batch.handles) < 2 or any(batch.flags):
            return [batch]
        first, second, *others = batch.tokens
        return [replace(batch, tokens=[second, first, *others])]


@Broken
class LosesQueuedRequests(EchoEngine):
    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool:
        if len(self._handles) > 2 * self.capabilities.max_batch_size:
            raise UnsupportedFeatureError("I am busy.", param="prompt")
        return super().pocketllm_generate(call=call)


@Broken
class OneAfterTheOther(EchoEngine):
    """Declares batching and runs one sequence at a time."""

    def _admit(self) -> list[Any]:
        active = super()._admit()
        return active[:1]
