"""The engine object: hooks on the caller's threads, one thread of its own that steps."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from pocketllm.engine.call import GenerateCall
from pocketllm.engine.outbox import Outbox
from pocketllm.errors import BackendUnavailableError, ConfigurationError, UnsupportedFeatureError
from pocketllm.hookspecs import hookimpl
from pocketllm.structured import TokenMatcher, compile_constraint
from pocketllm.types import (
    Capabilities,
    EngineStats,
    Finish,
    FinishReason,
    GenerationRequest,
    PromptReport,
    StepBatch,
    TokenFlag,
    TokenLogprob,
)
from pocketllm_torch.engine.logprobs import token_logprobs
from pocketllm_torch.engine.runner import Runner
from pocketllm_torch.engine.sampler import Sampler
from pocketllm_torch.engine.scheduler import Scheduler, StepPlan
from pocketllm_torch.engine.sequence import Sequence

if TYPE_CHECKING:
    from pocketllm.checkpoint import Tokenizer

_logger = logging.getLogger(__name__)

# A step that fails ends its sequences; this many in a row, and the engine itself is taken to be broken.
_MAX_FAILED_STEPS = 3


@dataclass
class _Counters:
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0


@dataclass
class _Commit:
    """What a step adds to its batch of events."""

    handles: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    prompts: list[PromptReport] = field(default_factory=list)
    finished: list[Finish] = field(default_factory=list)
    ended: list[Sequence] = field(default_factory=list)


@dataclass(frozen=True)
class _Arrival:
    """A request's sequences, and what restricts each."""

    sequences: list[Sequence]
    matchers: list[TokenMatcher | None]


class TorchEngine:
    """Continuous batching over one model.

    Threads: the hooks may be called from any thread. They queue messages; sequences, blocks and tensors are touched by
    the engine's thread alone, between or within steps.
    """

    def __init__(
        self,
        *,
        runner: Runner,
        scheduler: Scheduler,
        sampler: Sampler,
        capabilities: Capabilities,
        num_threads: int,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._sampler = sampler
        self._capabilities = capabilities
        self._num_threads = num_threads
        self._tokenizer = tokenizer
        self._events = Outbox()
        self._counters = _Counters()
        self._failed_steps = 0
        self._live: dict[int, Sequence] = {}
        self._lock = threading.Lock()  # guards what follows
        self._messages: deque[_Arrival | int] = deque()
        self._open_handles: set[int] = set()
        self._num_arrivals = 0
        self._closing = False
        self._fatal: str | None = None
        self._abandoned = False
        self._wake = threading.Event()
        self._stats = EngineStats()
        self._publish_stats()
        self._thread = threading.Thread(target=self._run, name="pocketllm-torch", daemon=True)
        self._thread.start()

    @property
    def events(self) -> Outbox:
        return self._events

    # -- hooks, on the callers' threads ---------------------------------------------------------------------------

    @hookimpl
    def pocketllm_capabilities(self) -> Capabilities:
        return self._capabilities

    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool:
        request = call.request
        self._check(request)
        matchers = self._matchers(request)
        with self._lock:
            if self._closing or self._fatal is not None:
                raise BackendUnavailableError(self._fatal or "The engine is closed: open a new one.")
            sequences = Sequence.from_request(request, self._num_arrivals)
            self._num_arrivals += len(sequences)
            self._open_handles.update(sequence.handle for sequence in sequences)
            self._messages.append(_Arrival(sequences, matchers))
        self._wake.set()
        return True

    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        with self._lock:
            if handle not in self._open_handles:
                return
            self._messages.append(handle)
        self._wake.set()

    @hookimpl
    def pocketllm_stats(self) -> EngineStats:
        return self._stats

    @hookimpl
    def pocketllm_close(self, deadline_s: float) -> None:
        with self._lock:
            self._closing = True
        self._wake.set()
        self._thread.join(max(0.0, deadline_s))
        if self._thread.is_alive():
            # A step outlasts the deadline.
            self._abandon(FinishReason.CANCELLED)

    def _check(self, request: GenerationRequest) -> None:
        if request.task != "generate":
            raise UnsupportedFeatureError(f"task = {request.task!r}: this engine only generates.", param="task")
        if request.adapter is not None:
            raise UnsupportedFeatureError("This engine has no adapters.", param="adapter")
        limit = self._capabilities.vocab_size
        for name, ids in (("prompt_tokens", request.prompt_tokens), ("logit_bias", request.sampling_params.logit_bias)):
            if ids and not 0 <= min(ids) <= max(ids) < limit:
                raise UnsupportedFeatureError(f"{name} has an id outside this model's {limit} tokens.", param=name)

    def _matchers(self, request: GenerationRequest) -> list[TokenMatcher | None]:
        """One matcher per choice; core has validated the constraint, so compiling it is quick."""
        if request.constraint is None:
            return [None] * len(request.choices)
        if self._tokenizer is None:
            raise UnsupportedFeatureError(
                "Structured output needs a tokenizer, and this checkpoint has none.", param="response_format"
            )
        try:
            compiled = compile_constraint(request.constraint, self._tokenizer)
        except ConfigurationError as error:
            raise UnsupportedFeatureError(error.message, param=error.param) from error
        return [compiled.matcher(request.stop_token_ids) for _ in request.choices]

    def _abandon(self, reason: FinishReason, error: str | None = None, fatal: str | None = None) -> None:
        """Answer for every open handle without the sequences; the engine's thread posts nothing any more."""
        with self._lock:
            self._abandoned = True
            self._fatal = self._fatal or fatal
            handles = sorted(self._open_handles)
            self._open_handles.clear()
        if handles or fatal is not None:
            finished = [Finish(handle, str(reason), error) for handle in handles]
            self._events.post(StepBatch(finished=finished, fatal=fatal))

    # -- the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)  # the setting belongs to the calling thread
        try:
            with torch.inference_mode():
                self._loop()
        except Exception as error:  # a fault of the loop itself: nobody may wait for ever
            _logger.exception("the engine's thread ended")
            text = f"{type(error).__name__}: {error}"
            self._abandon(FinishReason.ERROR, text, f"The engine's loop failed: {text}")

    def _loop(self) -> None:
        while self._fatal is None:
            # Read before the messages: whatever was accepted before close() is then among them.
            with self._lock:
                closing = self._closing
            self._take_messages()
            if closing:
                self._end(list(self._live.values()), FinishReason.CANCELLED)
                return
            plan = self._scheduler.schedule()
            if plan:
                self._step(plan)
                continue
            self._publish_stats()
            self._wake.wait()
            self._wake.clear()

    def _take_messages(self) -> None:
        cancelled: list[Sequence] = []
        while True:
            with self._lock:
                if not self._messages:
                    break
                message = self._messages.popleft()
            if isinstance(message, int):
                sequence = self._live.get(message)
                if sequence is not None and sequence not in cancelled:
                    cancelled.append(sequence)
                continue
            for sequence, matcher in zip(message.sequences, message.matchers, strict=True):
                sequence.sampling = self._sampler.start(sequence, matcher)
                self._live[sequence.handle] = sequence
            self._scheduler.add(message.sequences)
        if cancelled:
            self._end(cancelled, FinishReason.CANCELLED)

    def _step(self, plan: StepPlan) -> None:
        try:
            output = self._runner.execute(plan)
            for sequence in plan.decodes:
                sequence.num_computed += 1
            for chunk in plan.chunks:
                sequence = chunk.sequence
                sequence.num_computed = chunk.start + chunk.length
            sampled, logits = output.sampled, output.logits
            if logits is None:
                batch = _Commit()
                logprobs: list[TokenLogprob] = []
            else:
                sampled, logits = self._fork(sampled, logits)
                tokens = self._sampler.sample(logits, sampled)
                stuck = [sequence for sequence in sampled if _error(sequence) is not None]
                if stuck:
                    sampled, tokens, logits = _without_stuck(sampled, tokens, logits)
                batch = self._commit(sampled, tokens)
                batch.finished += [Finish(each.handle, str(FinishReason.ERROR), _error(each)) for each in stuck]
                batch.ended += stuck
                logprobs = self._logprobs(sampled, tokens, batch.flags, logits)
        except Exception as error:  # noqa: BLE001 - whatever a kernel raised, only this step's sequences are lost
            self._fail_step(plan, error)
            return
        self._failed_steps = 0
        self._counters.num_steps += 1
        self._counters.num_prompt_tokens += sum(chunk.length for chunk in plan.chunks)
        self._counters.num_generated_tokens += len(batch.tokens)
        for sequence in batch.ended:
            self._scheduler.finish(sequence)
            del self._live[sequence.handle]
        self._publish_stats()
        if batch.handles or batch.finished:
            self._post(
                StepBatch(
                    handles=batch.handles,
                    tokens=batch.tokens,
                    flags=batch.flags,
                    logprobs=logprobs,
                    prompts=batch.prompts,
                    finished=batch.finished,
                )
            )

    def _fork(self, sampled: list[Sequence], logits: torch.Tensor) -> tuple[list[Sequence], torch.Tensor]:
        """Let the choices that waited for a prompt just completed take it over: they sample from its row too."""
        rows = list(range(len(sampled)))
        members = list(sampled)
        for row, leader in enumerate(sampled):
            if leader.num_generated or not leader.group.followers:
                continue
            for follower, copy in self._scheduler.fork(leader):
                if copy is not None:
                    self._runner.copy_block(*copy)
                self._runner.copy_state(leader.slot, follower.slot)
                follower.prompt_logprobs = list(leader.prompt_logprobs)
                members.append(follower)
                rows.append(row)
        if len(members) == len(sampled):
            return sampled, logits
        return members, logits.index_select(0, torch.tensor(rows, device=logits.device))

    def _commit(self, sampled: list[Sequence], tokens: list[int]) -> _Commit:
        """Append each token, decide who ends, and note the events."""
        batch = _Commit(tokens=tokens)
        for sequence, token in zip(sampled, tokens, strict=True):
            handle = sequence.handle
            if not sequence.prompt_reported:
                batch.prompts.append(PromptReport(handle, 0, list(sequence.prompt_logprobs)))
                sequence.prompt_reported = True
                sequence.prompt_logprobs.clear()
            sequence.tokens.append(token)
            batch.handles.append(handle)
            stopped = token in sequence.stop_ids
            complete = not sequence.stop_ids and _is_complete(sequence)
            batch.flags.append(int(TokenFlag.STOP if stopped else TokenFlag.NONE))
            if stopped or complete or sequence.num_generated >= sequence.max_tokens:
                reason = FinishReason.STOP if stopped or complete else FinishReason.LENGTH
                batch.finished.append(Finish(handle, str(reason)))
                batch.ended.append(sequence)
        return batch

    @staticmethod
    def _logprobs(
        sampled: list[Sequence], tokens: list[int], flags: list[int], logits: torch.Tensor
    ) -> list[TokenLogprob]:
        rows = [
            row
            for row, sequence in enumerate(sampled)
            if sequence.request.sampling_params.logprobs and not flags[row] & TokenFlag.STOP
        ]
        if not rows:
            return []
        chosen = (
            logits if len(rows) == len(sampled) else logits.index_select(0, torch.tensor(rows, device=logits.device))
        )
        num_top = [sampled[row].request.sampling_params.num_top_logprobs for row in rows]
        entries = token_logprobs(chosen, [tokens[row] for row in rows], num_top)
        return [TokenLogprob(row, entry.logprob, entry.top) for row, entry in zip(rows, entries, strict=True)]

    def _fail_step(self, plan: StepPlan, error: Exception) -> None:
        _logger.exception("an engine step failed")
        self._failed_steps += 1
        text = f"{type(error).__name__}: {error}"
        # A CUDA error other than lack of memory stays with the process for good.
        sticky = self._capabilities.details.get("device") != "cpu" and not isinstance(error, torch.OutOfMemoryError)
        if sticky or self._failed_steps >= _MAX_FAILED_STEPS:
            fatal = f"The engine stopped after a failed step: {text}"
            with self._lock:
                self._fatal = fatal
            self._take_messages()
            self._end(list(self._live.values()), FinishReason.ERROR, text, fatal)
            return
        lost = [sequence for sequence in plan.sequences if sequence.handle in self._live]
        # Choices that took over a prompt in this step and got no token from it.
        lost += [s for s in self._scheduler.running if s.num_computed >= len(s.tokens) and s not in lost]
        self._end(lost, FinishReason.ERROR, text)

    def _end(
        self, sequences: list[Sequence], reason: FinishReason, error: str | None = None, fatal: str | None = None
    ) -> None:
        """Free what the sequences hold and post their last event."""
        for sequence in sequences:
            self._scheduler.finish(sequence)
            del self._live[sequence.handle]
        self._publish_stats()
        finished = [Finish(sequence.handle, str(reason), error) for sequence in sequences]
        if finished or fatal is not None:
            self._post(StepBatch(finished=finished, fatal=fatal))

    def _post(self, batch: StepBatch) -> None:
        with self._lock:
            if self._abandoned:
                return
            self._open_handles.difference_update(finish.handle for finish in batch.finished)
        self._events.post(batch)

    def _publish_stats(self) -> None:
        """A new snapshot, before the events that tell of the change."""
        scheduler, pool = self._scheduler, self._scheduler.pool
        self._stats = EngineStats(
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting,
            num_steps=self._counters.num_steps,
            num_slots=scheduler.max_num_sequences,
            num_free_slots=scheduler.max_num_sequences - len(scheduler.running),
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_preemptions=scheduler.num_preemptions,
            num_prompt_tokens=self._counters.num_prompt_tokens,
            num_generated_tokens=self._counters.num_generated_tokens,
        )


def _error(sequence: Sequence) -> str | None:
    return None if sequence.sampling is None else sequence.sampling.error


def _is_complete(sequence: Sequence) -> bool:
    """Whether a constraint leaves nothing to generate; without stop ids nothing else tells the end."""
    state = sequence.sampling
    return state is not None and state.matcher is not None and state.matcher.is_done


def _without_stuck(
    sampled: list[Sequence], tokens: list[int], logits: torch.Tensor
) -> tuple[list[Sequence], list[int], torch.Tensor]:
    rows = [row for row, sequence in enumerate(sampled) if _error(sequence) is None]
    kept = torch.tensor(rows, dtype=torch.int64, device=logits.device)
    return [sampled[row] for row in rows], [tokens[row] for row in rows], logits.index_select(0, kept)
