"""From step batches to output logs. Sans-IO: the one who waits on the descriptors calls :meth:`Pump.route`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from pocketllm.errors import EngineError, PluginError, PocketLLMError, error_named
from pocketllm.host.record import Delta, RequestRecord, join_deltas
from pocketllm.stages import TokenStage
from pocketllm.text.logprobs import PackedLogprob, pack_logprob, render_logprob
from pocketllm.types import (
    CancelReason,
    Finish,
    FinishReason,
    LogprobEntry,
    PromptReport,
    RowExtra,
    StepBatch,
    TokenFlag,
    TokenLogprob,
)

if TYPE_CHECKING:
    from pocketllm.checkpoint import Tokenizer
    from pocketllm.text.choice import ChoiceText
    from pocketllm.text.tool_calls.base import CallDelta

logger = logging.getLogger("pocketllm.engine")


class Routed(msgspec.Struct):
    """What a drain asks of the host: sequences to cancel, records that ended, and whether the engine is broken."""

    cancels: list[tuple[int, CancelReason]] = []
    finished: list[RequestRecord] = []
    fatal: str | None = None


class ChoiceStream:
    """One choice: the rows of a drain in, one delta out."""

    def __init__(
        self,
        record: RequestRecord,
        index: int,
        text: ChoiceText,
        tokenizer: Tokenizer,
        token_stages: list[TokenStage],
    ) -> None:
        self.record = record
        self.index = index
        self.handle = record.request.choices[index].handle
        self._text = text
        self._tokenizer = tokenizer
        self._token_stages = token_stages
        self._wants_logprobs = record.request.sampling_params.logprobs
        self._pending: list[int] = []
        self._pending_logprobs: list[TokenLogprob | None] = []
        # Tokens whose text may still be cut by a stop string: neither ids nor log probabilities go out yet. The latter
        # are kept where they are asked for alone, one for each id, as those that are pending.
        self._unreleased: list[int] = []
        self._unreleased_logprobs: list[TokenLogprob | None] = []
        self._num_released = 0
        self._parts: list[Delta] = []
        self._brought_tool_calls = False
        self._num_stop_tokens = 0
        self.has_output = False
        self._asked_to_stop = False
        self._cut = False  # a stop string matched: what is held is not part of the answer

    def add_token(self, token: int, logprob: TokenLogprob | None) -> None:
        self._pending.append(token)
        if self._wants_logprobs:
            self._pending_logprobs.append(logprob)

    def add_extra(self, extra: RowExtra) -> bool:
        """Text or metadata a backend brought itself; True when a stop string ended the choice in it."""
        if self.flush():
            return True
        part = self._text.feed_text(extra.text, extra.reasoning_content)
        self._brought_tool_calls |= bool(extra.tool_calls)
        self._cut |= part.stopped
        self._keep(part.content, part.reasoning, tool_calls=tuple(extra.tool_calls))
        return part.stopped

    def add_stop_token(self) -> bool:
        """The step that gave a stop id counts, and nothing else of it is shown; True when a stop string came before."""
        if self.flush():
            return True
        self._num_stop_tokens += 1
        return False

    def take_report(self, report: PromptReport) -> None:
        """What the engine says of the prompt; choices share one, and the first to bring log probabilities is heard."""
        record = self.record
        record.num_cached_tokens = max(record.num_cached_tokens, report.num_cached_tokens)
        if report.logprobs and record.prompt_logprobs is None:
            prompt = record.request.prompt_tokens
            rows: list[LogprobEntry | None] = [None] * len(prompt)
            for entry in report.logprobs:
                rows[entry.row] = render_logprob(self._tokenizer, prompt[entry.row], entry.logprob, entry.top)
            record.prompt_logprobs = tuple(rows)

    def flush(self) -> bool:
        """Run what was added through the text pipeline; True when a stop string or a token stage ends the choice."""
        if not self._pending:
            return False
        tokens, logprobs = self._pending, self._pending_logprobs
        self._pending, self._pending_logprobs = [], []
        asked_to_stop = False
        if self._token_stages:
            num_kept = self._run_token_stages(tokens)
            asked_to_stop = num_kept < len(tokens) or self._asked_to_stop
            tokens, logprobs = tokens[:num_kept], logprobs[:num_kept]
        part = self._text.feed(tokens)
        self.has_output = True
        self._unreleased += tokens
        self._unreleased_logprobs += logprobs
        self._cut |= part.stopped
        self._keep(part.content, part.reasoning, tool_calls=tuple(map(_call_delta, part.calls)) if part.calls else ())
        return part.stopped or asked_to_stop

    def take_delta(self) -> Delta | None:
        """What this drain gave, as one log entry, or None when everything is held back."""
        if not self._parts:
            return None
        if len(self._parts) == 1:
            return self._parts.pop()
        parts, self._parts = self._parts, []
        return join_deltas(parts)

    def end(self, reason: str, error: str | None = None) -> None:
        """Close the choice: flush what was held (unless a stop string cut it) and give the final delta."""
        content = reasoning = ""
        calls: tuple[CallDelta, ...] = ()
        if not self._cut:
            tail = self._text.finish()
            content, reasoning, calls = tail.content, tail.reasoning, tail.calls
            if tail.stopped:
                self._cut, reason = True, FinishReason.STOP
        if reason == FinishReason.STOP and (self._brought_tool_calls or self._text.calls_complete):
            reason = FinishReason.TOOL_CALLS
        self._keep(
            content,
            reasoning,
            tool_calls=tuple(map(_call_delta, calls)),
            finish_reason=str(reason),
            error=error,
            all_tokens=not self._cut,
        )

    def fail(self, error: str) -> None:
        """Close the choice without touching the text pipeline, which is what failed."""
        self._parts.append(Delta(choice_index=self.index, finish_reason=str(FinishReason.ERROR), error=error))

    def _run_token_stages(self, tokens: list[int]) -> int:
        """How many tokens stay: up to and including the one at which a stage stops. One by one, so that the answer does
        not depend on how many arrived together."""
        for position, token in enumerate(tokens):
            for stage in self._token_stages:
                self._asked_to_stop |= bool(stage.feed(token))
            if self._asked_to_stop:
                return position + 1
        return len(tokens)

    def _keep(
        self,
        content: str,
        reasoning: str,
        *,
        tool_calls: tuple[dict[str, Any], ...] = (),
        finish_reason: str | None = None,
        error: str | None = None,
        all_tokens: bool = False,
    ) -> None:
        # Tokens behind a stop string that may be under way are counted once it is decided.
        self.record.num_generated[self.index] = self._text.offsets.num_used + self._num_stop_tokens
        self.record.num_reasoning[self.index] = self._text.offsets.num_reasoning
        ids, entries = self._release(all_tokens)
        if content or reasoning or ids or tool_calls or finish_reason is not None:
            delta = Delta(
                choice_index=self.index,
                text=content,
                reasoning=reasoning,
                token_ids=ids,
                logprobs=entries,
                tool_calls=tool_calls,
                finish_reason=finish_reason,
                error=error,
                stop_sequence=self._text.stop_sequence if finish_reason is not None else None,
            )
            self._parts.append(delta)

    def _release(self, all_tokens: bool) -> tuple[tuple[int, ...], tuple[PackedLogprob, ...]]:
        count = len(self._unreleased) if all_tokens else self._text.offsets.num_in_text - self._num_released
        if count <= 0:
            return (), ()
        ids = tuple(self._unreleased[:count])
        del self._unreleased[:count]
        self._num_released += len(ids)
        if not self._wants_logprobs:
            return ids, ()
        rows = zip(ids, self._unreleased_logprobs[:count], strict=True)
        entries = [pack_logprob(self._tokenizer, token, row.logprob, row.top) for token, row in rows if row is not None]
        del self._unreleased_logprobs[:count]
        return ids, tuple(entries)


def _call_delta(call: CallDelta) -> dict[str, Any]:
    """OpenAI's shape of a streamed tool call: id, type and name come first and once, arguments add up."""
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments_delta}}
    function = {"name": call.name, "arguments": call.arguments_delta}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


class Pump:
    """Routes rows to choices by handle. The caller holds the host's lock during every call."""

    def __init__(self, blame: Callable[[BaseException], str | None]) -> None:
        self._streams: dict[int, ChoiceStream] = {}
        self._blame = blame

    def register(self, streams: Iterable[ChoiceStream]) -> None:
        for stream in streams:
            self._streams[stream.handle] = stream

    def forget(self, record: RequestRecord) -> list[int]:
        """Drop a record's remaining choices; late events about them are ignored. Returns their handles."""
        return [c.handle for c in record.request.choices if self._streams.pop(c.handle, None) is not None]

    def unfinished_handles(self, record: RequestRecord) -> list[int]:
        return [choice.handle for choice in record.request.choices if choice.handle in self._streams]

    def route(self, batches: list[StepBatch]) -> Routed:
        """Take batches in order and append at most one delta per choice to the logs; notify each reader once."""
        routed = Routed(cancels=[], finished=[])
        touched: dict[int, ChoiceStream] = {}
        for batch in batches:
            self._route_batch(batch, touched, routed)
            if batch.fatal is not None:
                routed.fatal = batch.fatal
        for stream in touched.values():
            if stream.handle in self._streams:
                self._guard(stream, routed, self._flush, routed)
        self._publish(touched.values(), routed)
        return routed

    def end(self, records: Iterable[RequestRecord], reason: FinishReason, error: str | None) -> Routed:
        """End every open choice of ``records`` from core's side (engine broken, shut down, or deaf to a cancel)."""
        routed = Routed(cancels=[], finished=[])
        streams = [self._streams[handle] for record in records for handle in self.unfinished_handles(record)]
        for stream in streams:
            self._guard(stream, routed, self._end, str(reason), error)
        self._publish(streams, routed)
        return routed

    def _route_batch(self, batch: StepBatch, touched: dict[int, ChoiceStream], routed: Routed) -> None:
        for report in batch.prompts:
            self._take_report(report)
        logprobs = {row.row: row for row in batch.logprobs} if batch.logprobs else {}
        extras = {extra.row: extra for extra in batch.extras} if batch.extras else {}
        streams = self._streams
        for row, handle in enumerate(batch.handles):
            stream = streams.get(handle)
            if stream is None:
                continue  # ended by core already, or never ours
            touched[handle] = stream
            flag = batch.flags[row]
            if not flag:
                stream.add_token(batch.tokens[row], logprobs.get(row))
            if flag or row in extras:
                self._guard(stream, routed, self._special_row, flag, extras.get(row), routed)
        for finish in batch.finished:
            stream = streams.get(finish.handle)
            if stream is not None:
                touched[finish.handle] = stream
                self._guard(stream, routed, self._finish, finish, routed)

    def _special_row(self, stream: ChoiceStream, flag: int, extra: RowExtra | None, routed: Routed) -> None:
        stopped = False
        if flag & TokenFlag.STOP:
            stopped = stream.add_stop_token()
        if extra is not None and not stopped:
            stopped = stream.add_extra(extra)
        if stopped:
            self._stop(stream, routed)

    def _take_report(self, report: PromptReport) -> None:
        stream = self._streams.get(report.handle)
        if stream is not None:
            stream.take_report(report)

    def _flush(self, stream: ChoiceStream, routed: Routed) -> None:
        if stream.flush():
            self._stop(stream, routed)

    def _stop(self, stream: ChoiceStream, routed: Routed) -> None:
        """A stop string or a token stage ended the choice: the engine's further work on it is of no use."""
        stream.end(FinishReason.STOP)
        del self._streams[stream.handle]
        routed.cancels.append((stream.handle, CancelReason.STOP_STRING))

    def _finish(self, stream: ChoiceStream, finish: Finish, routed: Routed) -> None:
        if stream.flush():
            self._stop(stream, routed)
            return
        if finish.error_kind and stream.record.failure is None:
            stream.record.failure = error_named(finish.error_kind, finish.error or "", finish.param)
        self._end(stream, finish.reason, finish.error)

    def _end(self, stream: ChoiceStream, reason: str, error: str | None) -> None:
        stream.end(reason, error)
        del self._streams[stream.handle]

    def _guard(self, stream: ChoiceStream, routed: Routed, work: Callable[..., None], *arguments: object) -> None:
        """A stage or the text pipeline may raise: that ends this one stream, and says whose fault it was."""
        context = stream.record.context
        try:
            context.run(work, stream, *arguments)
        except Exception as error:  # noqa: BLE001  # any plugin may raise anything; the other streams continue
            name = self._blame(error)
            if name is None:
                context.run(logger.exception, "the text pipeline failed on request %s", stream.record.request_id)
                failure: PocketLLMError = EngineError(f"The text pipeline failed: {error!r}.")
            else:
                failure = PluginError(f"Plugin {name!r} raised while it handled the stream: {error!r}.")
            stream.record.failure = failure
            stream.fail(failure.message)
            if self._streams.pop(stream.handle, None) is not None:
                routed.cancels.append((stream.handle, CancelReason.PLUGIN))

    def _publish(self, streams: Iterable[ChoiceStream], routed: Routed) -> None:
        records: dict[RequestRecord, None] = {}  # in the order of their streams
        for stream in streams:
            delta = stream.take_delta()
            record = stream.record
            if record.first_token_at is None and stream.has_output:
                record.first_token_at = time.monotonic()
            if delta is not None and not record.finished:
                record.append(delta)
                records[record] = None
        for record in records:
            if record.finished:
                routed.finished.append(record)
            record.notify()
