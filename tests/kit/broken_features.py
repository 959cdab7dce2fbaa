"""More backends that each break one rule: sampling, features, limits and lifecycle."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, ClassVar

import msgspec

from pocketllm.checkpoint import Checkpoint
from pocketllm.engine.call import GenerateCall
from pocketllm.engine.iterator_engine import Emission, Item
from pocketllm.engine.outbox import Outbox
from pocketllm.engine_args import EngineArgs
from pocketllm.hookspecs import hookimpl
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Capabilities, Command, EngineStats, GenerationRequest, PromptReport, StepBatch
from pocketllm_echo.engine import EchoEngine
from tests.kit.broken import Broken, Tampered

replace = msgspec.structs.replace


# --------------------------------------------------------------------------------------------------------- sampling


class Lies(EchoEngine):
    """Declares everything and passes over the values that ``neutral`` replaces."""

    neutral: ClassVar[dict[str, Any]] = {}

    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        params = request.sampling_params
        values = {name: getattr(params, name) for name in SamplingParams.__struct_fields__}
        return super().tokens(replace(request, sampling_params=SamplingParams(**{**values, **self.neutral})))


@Broken
class IgnoresTemperature(Lies):
    neutral: ClassVar[dict[str, Any]] = {"temperature": 0.0}


@Broken
class IgnoresTopP(Lies):
    neutral: ClassVar[dict[str, Any]] = {"top_p": None}


@Broken
class IgnoresTopK(Lies):
    neutral: ClassVar[dict[str, Any]] = {"top_k": None}


@Broken
class IgnoresMinP(Lies):
    neutral: ClassVar[dict[str, Any]] = {"min_p": None}


@Broken
class IgnoresRepetitionPenalty(Lies):
    neutral: ClassVar[dict[str, Any]] = {"repetition_penalty": 1.0}


@Broken
class IgnoresFrequencyPenalty(Lies):
    neutral: ClassVar[dict[str, Any]] = {"frequency_penalty": 0.0}


@Broken
class IgnoresPresencePenalty(Lies):
    neutral: ClassVar[dict[str, Any]] = {"presence_penalty": 0.0}


@Broken
class IgnoresLogitBias(Lies):
    neutral: ClassVar[dict[str, Any]] = {"logit_bias": {}}


@Broken
class IgnoresMinTokens(Lies):
    neutral: ClassVar[dict[str, Any]] = {"min_tokens": 0}


@Broken
class StopsAtEndIdsAlways(EchoEngine):
    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        for item in super().tokens(request):
            if item in self.capabilities.eos_token_ids:
                return
            yield item


@Broken
class IgnoresStopIds(EchoEngine):
    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool:
        own = tuple(stop for stop in call.request.stop_token_ids if stop in self.capabilities.eos_token_ids)
        return super().pocketllm_generate(call=GenerateCall(replace(call.request, stop_token_ids=own)))


@Broken
class IgnoresSeeds(EchoEngine):
    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        choice = replace(request.choices[0], seed=7)
        return super().tokens(replace(request, choices=(choice,)))


@Broken
class DrawsAfresh(EchoEngine):
    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        choice = replace(request.choices[0], seed=time.monotonic_ns())
        return super().tokens(replace(request, choices=(choice,)))


@Broken
class NeverTheSameAnswer(Tampered):
    counter = 0

    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        self.counter += 1
        return [
            replace(
                batch,
                tokens=[t if f else 3 + self.counter % 200 for t, f in zip(batch.tokens, batch.flags, strict=True)],
            )
        ]


# --------------------------------------------------------------------------------------------------------- features


class Declares(EchoEngine):
    """Declares what ``declared`` says and does nothing about it."""

    declared: ClassVar[dict[str, Any]] = {}

    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        self._capabilities = replace(self._capabilities, **self.declared)


@Broken
class NoStructure(Declares):
    declared: ClassVar[dict[str, Any]] = {"supports_structured_outputs": True}


@Broken
class NoPrefixCache(Declares):
    declared: ClassVar[dict[str, Any]] = {"supports_prefix_caching": True}


@Broken
class UndeclaredBatch(Declares):
    declared: ClassVar[dict[str, Any]] = {"supports_batch": False}


@Broken
class SampledLogprobs(EchoEngine):
    """Log probabilities after temperature instead of raw ones."""

    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        scale = max(1.0, request.sampling_params.temperature)
        for item in super().tokens(request):
            if isinstance(item, Emission) and item.logprob is not None:
                top = [(token, logprob / scale) for token, logprob in item.top]
                item = replace(item, logprob=item.logprob / scale, top=top)
            yield item


@Broken
class Log2Probabilities(EchoEngine):
    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        for item in super().tokens(request):
            if isinstance(item, Emission) and item.logprob is not None:
                item = replace(item, logprob=item.logprob / 0.6931)
            yield item


@Broken
class PromptLogprobsFromZero(EchoEngine):
    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        for item in super().tokens(request):
            if isinstance(item, PromptReport):
                item = replace(item, logprobs=[replace(entry, row=entry.row - 1) for entry in item.logprobs])
            yield item


@Broken
class NeighboursMatter(EchoEngine):
    """The second token depends on how many sequences run."""

    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        for index, item in enumerate(super().tokens(request)):
            yield len(self._running) + 100 if index == 1 else item


@Broken
class AllAtOnce(Tampered):
    """Keeps the rows of a sequence until its end."""

    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        if not hasattr(self, "kept"):
            self.kept: dict[int, list[tuple[int, int]]] = {}
        for handle, token, flag in zip(batch.handles, batch.tokens, batch.flags, strict=True):
            self.kept.setdefault(handle, []).append((token, flag))
        out = []
        for finish in batch.finished:
            rows = self.kept.pop(finish.handle, [])
            tokens, flags = [token for token, _ in rows], [flag for _, flag in rows]
            out.append(StepBatch([finish.handle] * len(rows), tokens, flags, finished=[finish]))
        return out


@Broken
class FirstComeFirstServed(Declares):
    """Declares priority and serves in the order of arrival; slow enough that its places stay taken meanwhile."""

    declared: ClassVar[dict[str, Any]] = {"supports_priority": True}

    def before_step(self, num_active: int) -> None:
        time.sleep(0.002)


@Broken
class ForgetsTheSuffix(EchoEngine):
    """Answers to the beginning of a prompt and to its last token, whatever stands between."""

    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        prompt = request.prompt_tokens
        return super().tokens(replace(request, prompt_tokens=(*prompt[:4], prompt[-1])))


@Broken
class CallsNothing(Declares):
    """Declares that it holds itself to a call, and plays its script."""

    declared: ClassVar[dict[str, Any]] = {"supports_tool_choice": True, "supports_structured_outputs": True}


# ------------------------------------------------------------------------------------------------ limits, lifecycle


@Broken
class ShortContext(EchoEngine):
    """Takes prompts up to half of what it declares."""

    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        if len(request.prompt_tokens) > self.capabilities.max_model_len // 2:
            raise MemoryError("no room")
        return super().tokens(request)


@Broken
class MixesUpChoices(Tampered):
    """All rows of a request go to its first choice."""

    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        return [replace(batch, handles=batch.handles[:1] * len(batch.handles))]


@Broken
class WrongCounters(EchoEngine):
    @hookimpl
    def pocketllm_stats(self) -> EngineStats:
        stats = super().pocketllm_stats()
        return replace(stats, num_generated_tokens=stats.num_generated_tokens // 2)


@Broken
class ChangingCapabilities(EchoEngine):
    @property
    def capabilities(self) -> Capabilities:
        return replace(self._capabilities, details={"steps": self._num_steps})


@Broken
class ClosesWithoutGoodbye(Tampered):
    """Drops the final events of what is active when it is closed."""

    def tamper(self, batch: StepBatch) -> list[StepBatch]:
        return [replace(batch, finished=[])] if self._closing else [batch]


@Broken
class RaisesOnSecondClose(EchoEngine):
    @hookimpl
    def pocketllm_close(self, deadline_s: float) -> None:
        if self._closed:
            raise RuntimeError("already closed")
        super().pocketllm_close(deadline_s=deadline_s)


@Broken
class RemembersAcrossReopening(EchoEngine):
    """The second engine of a process answers differently."""

    opened = 0

    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        type(self).opened += 1
        self._script = "x" * 40 if self.opened > 1 else None


@Broken
class BlocksTheCaller(EchoEngine):
    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool:
        time.sleep(0.4)
        return super().pocketllm_generate(call=call)


@Broken
class StatsWait(EchoEngine):
    @hookimpl
    def pocketllm_stats(self) -> EngineStats:
        if self._running:
            time.sleep(0.4)
        return super().pocketllm_stats()


@Broken
class CriesWolf(EchoEngine):
    @hookimpl
    def pocketllm_heartbeat(self) -> str | None:
        return "It has not been heard of for a while." if self._running else None


@Broken
class HeartbeatWaits(EchoEngine):
    @hookimpl
    def pocketllm_heartbeat(self) -> str | None:
        if self._running:
            time.sleep(0.4)
        return None


@Broken
class TakesAnyCommand(EchoEngine):
    @hookimpl
    def pocketllm_control(self, command: Command) -> Future[object]:
        return Future()


class _WaitingOutbox(Outbox):
    def drain(self) -> list[StepBatch]:
        select.select([self.fileno()], [], [], 0.4)
        return super().drain()


@Broken
class DrainWaits(EchoEngine):
    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        self._events = _WaitingOutbox()


class _RestlessOutbox(Outbox):
    def drain(self) -> list[StepBatch]:
        batches = super().drain()
        self._wake.set()
        return batches


@Broken
class NeverQuiet(EchoEngine):
    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        self._events = _RestlessOutbox()


@Broken
class CannotOpen(EchoEngine):
    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        raise OSError("no such device")


# ----------------------------------------------------------------------------------------------- behind core's host


@Broken
class GreedyReadsTheSeed(EchoEngine):
    """Right with the kit's seed, wrong with those that core draws."""

    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        for item in super().tokens(request):
            yield item if request.choices[0].seed == 0 else 5


@Broken
class DeafAndSlow(EchoEngine):
    def before_step(self, num_active: int) -> None:
        time.sleep(0.005)

    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        pass
