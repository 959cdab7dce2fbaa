"""The engine's thread: take messages, then schedule, run, commit and publish one step after another."""

from __future__ import annotations

import logging
import threading

import torch

from pocketllm.engine.outbox import Outbox
from pocketllm.types import Finish, FinishReason, StepBatch
from pocketllm_torch.engine.acceptance import SampleRow, sample, sample_rows
from pocketllm_torch.engine.commit import Outcome, commit
from pocketllm_torch.engine.drafter import Drafter
from pocketllm_torch.engine.inbox import Arrival, Inbox
from pocketllm_torch.engine.plan import StepPlan, Work, work_of
from pocketllm_torch.engine.sampler import Sampler
from pocketllm_torch.engine.scheduler import Scheduler
from pocketllm_torch.engine.sequence import Sequence
from pocketllm_torch.engine.statistics import Statistics
from pocketllm_torch.engine.step import Executor, StepOutput

_logger = logging.getLogger(__name__)

# A step that fails ends its sequences; this many in a row, and the engine itself is taken to be broken.
_MAX_FAILED_STEPS = 3


class Loop:
    """Steps until it is closed. Sequences, blocks and tensors are touched by its thread alone.

    Args:
        sticky_errors: a failed step leaves the device unusable, unless it lacked memory: so CUDA's errors do.
        drafter: proposes tokens; None for one token per sequence and step.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        scheduler: Scheduler,
        sampler: Sampler,
        inbox: Inbox,
        events: Outbox,
        num_threads: int,
        sticky_errors: bool,
        drafter: Drafter | None = None,
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._sampler = sampler
        self._inbox = inbox
        self._events = events
        self._num_threads = num_threads
        self._sticky_errors = sticky_errors
        self._drafter = drafter
        self._live: dict[int, Sequence] = {}
        self._failed_steps = 0
        self.statistics = Statistics(scheduler)
        self._thread = threading.Thread(target=self._run, name="pocketllm-torch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; False when it still runs."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def abandon(self, reason: FinishReason, error: str | None = None, fatal: str | None = None) -> None:
        """Answer for every open handle without the sequences; the thread posts nothing from then on. Threads: any."""
        if fatal is not None:
            self._inbox.fail(fatal)
        handles = self._inbox.abandon()
        if handles or fatal is not None:
            self._events.post(
                StepBatch(finished=[Finish(handle, str(reason), error) for handle in handles], fatal=fatal)
            )

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)  # the setting belongs to the calling thread
        try:
            with torch.inference_mode():
                self._loop()
        except Exception as error:  # a fault of the loop itself: no stream may wait without end
            _logger.exception("the engine's thread ended")
            text = f"{type(error).__name__}: {error}"
            self.abandon(FinishReason.ERROR, text, f"The engine's loop failed: {text}")

    def _loop(self) -> None:
        while self._inbox.fatal is None:
            # Read before the messages: every request accepted before the inbox closed is then among them.
            closing = self._inbox.closing
            self._take_messages()
            if closing:
                self._end(list(self._live.values()), FinishReason.CANCELLED)
                return
            plan = self._schedule()
            if plan:
                self._step(plan)
                continue
            self.statistics.publish()
            self._inbox.wait()

    def _take_messages(self) -> None:
        cancelled: dict[int, Sequence] = {}
        for message in self._inbox.take():
            if isinstance(message, Arrival):
                self._admit(message)
            elif message in self._live:
                cancelled[message] = self._live[message]
        if cancelled:
            self._end(list(cancelled.values()), FinishReason.CANCELLED)

    def _admit(self, arrival: Arrival) -> None:
        states = [self._sampler.start(arrival.request, matcher) for matcher in arrival.matchers]
        sequences = Sequence.from_request(arrival.request, arrival.first_arrival, states)
        self._live.update((sequence.handle, sequence) for sequence in sequences)
        self._scheduler.add(sequences)

    # -- one step -------------------------------------------------------------------------------------------------

    def _schedule(self) -> StepPlan:
        drafts = self._drafter.propose(self._scheduler.decoding()) if self._drafter is not None else {}
        return self._scheduler.schedule(drafts)

    def _step(self, plan: StepPlan) -> None:
        try:
            work = work_of(plan, self._scheduler.pool.block_size, replays_one_by_one=self._scheduler.fixed_chunks)
            outcome = self._commit(plan, work, self._executor.execute(work.step))
        except Exception as error:  # noqa: BLE001 - a kernel may raise anything; only this step's sequences are lost
            self._fail_step(plan, error)
            return
        self._failed_steps = 0
        self.statistics.count_step(plan.num_prompt_tokens, len(outcome.tokens))
        for sequence in outcome.ended:
            self._remove(sequence)
        self.statistics.publish()
        if outcome:
            self._post(outcome.batch)

    def _commit(self, plan: StepPlan, work: Work, output: StepOutput) -> Outcome:
        self._scheduler.advance(plan)
        for index, entries in output.prompt_logprobs.items():
            self._scheduler.keep_prompt_logprobs(work.members[index], entries)
        if output.logits is None:
            return Outcome()
        rows = self._with_followers(sample_rows(work))
        return commit(self._scheduler, output.logits, rows, sample(self._sampler, output.logits, rows))

    def _with_followers(self, rows: list[SampleRow]) -> list[SampleRow]:
        """Let the choices that waited for a prompt just completed take it over: they sample from its row too."""
        followers = [
            SampleRow(follower, row.row, [])
            for row in rows
            if row.sequence.group.followers and not row.sequence.num_generated
            for follower in self._scheduler.fork(row.sequence)
        ]
        return rows + followers

    def _fail_step(self, plan: StepPlan, error: Exception) -> None:
        _logger.exception("an engine step failed")
        self._failed_steps += 1
        text = f"{type(error).__name__}: {error}"
        sticky = self._sticky_errors and not isinstance(error, torch.OutOfMemoryError)
        if sticky or self._failed_steps >= _MAX_FAILED_STEPS:
            fatal = f"The engine stopped after a failed step: {text}"
            self._inbox.fail(fatal)
            self._take_messages()
            self._end(list(self._live.values()), FinishReason.ERROR, text, fatal)
            return
        lost = [sequence for sequence in plan.sequences if sequence.handle in self._live]
        # Choices that took over a prompt in this step and got no token from it.
        lost += [s for s in self._scheduler.running if s.num_computed >= len(s.tokens) and s not in lost]
        self._end(lost, FinishReason.ERROR, text)

    # -- ends -----------------------------------------------------------------------------------------------------

    def _end(
        self, sequences: list[Sequence], reason: FinishReason, error: str | None = None, fatal: str | None = None
    ) -> None:
        """Free what the sequences hold and post their last event."""
        for sequence in sequences:
            self._remove(sequence)
        self.statistics.publish()
        finished = [Finish(sequence.handle, str(reason), error) for sequence in sequences]
        if finished or fatal is not None:
            self._post(StepBatch(finished=finished, fatal=fatal))

    def _remove(self, sequence: Sequence) -> None:
        self._scheduler.finish(sequence)
        del self._live[sequence.handle]

    def _post(self, batch: StepBatch) -> None:
        if self._inbox.settle(batch.finished):
            self._events.post(batch)
