"""Counters and histograms, and their text in Prometheus' exposition format (version 0.0.4)."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Protocol

from pocketllm.types import EngineStats, Usage
from pocketllm_server.request_context import current_request

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

DURATION_BOUNDS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
TTFT_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip


class Histogram:
    """Counts per bucket; a value belongs to the first bound that is not below it."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help_text = help_text
        self.bounds = tuple(bounds)
        self.buckets = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def observe(self, value: float, times: int = 1) -> None:
        self.buckets[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def lines(self) -> Iterable[str]:
        yield from _head(self.name, self.help_text, "histogram")
        yield from self.samples()

    def samples(self, label: str = "") -> Iterable[str]:
        """The samples alone; ``label`` is one more label pair, as in ``route="/v1/models"``."""
        first = f"{label}," if label else ""
        whole = f"{{{label}}}" if label else ""
        total = 0
        for bound, count in zip(self.bounds, self.buckets, strict=False):
            total += count
            yield f'{self.name}_bucket{{{first}le="{bound:g}"}} {total}'
        total += self.buckets[-1]
        yield f'{self.name}_bucket{{{first}le="+Inf"}} {total}'
        yield f"{self.name}_sum{whole} {self.sum!r}"
        yield f"{self.name}_count{whole} {total}"


class LabelledHistogram:
    """A histogram for each value of one label; the values come from a small closed set."""

    def __init__(self, name: str, help_text: str, label: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help_text = help_text
        self.label = label
        self.bounds = bounds
        self.by_value: dict[str, Histogram] = {}

    def observe(self, value: str, measured: float) -> None:
        histogram = self.by_value.get(value)
        if histogram is None:
            histogram = self.by_value[value] = Histogram(self.name, self.help_text, self.bounds)
        histogram.observe(measured)

    def lines(self) -> Iterable[str]:
        yield from _head(self.name, self.help_text, "histogram")
        for value, histogram in sorted(self.by_value.items()):
            yield from histogram.samples(f'{self.label}="{_escaped(value)}"')


class LabelledCounter:
    """A counter with a fixed set of label names; label values come from small closed sets."""

    def __init__(self, name: str, help_text: str, labels: tuple[str, ...]) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels
        self.values: dict[tuple[str, ...], int] = {}

    def add(self, *values: str) -> None:
        self.values[values] = self.values.get(values, 0) + 1

    def lines(self) -> Iterable[str]:
        yield from _head(self.name, self.help_text, "counter")
        for values, count in sorted(self.values.items()):
            pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(self.labels, values, strict=True))
            yield f"{self.name}{{{pairs}}} {count}"


class Queue(Protocol):
    """What bounds the requests that are let in; see :class:`pocketllm_server.limits.QueueLimit`."""

    num_inside: int

    def limit(self) -> int | None: ...


class Metrics:
    """Everything that is counted since the start. Used on the event loop alone."""

    def __init__(self) -> None:
        self.ttft = Histogram(
            "pocketllm_ttft_seconds", "Time from request to first token, streamed requests only.", TTFT_BOUNDS_S
        )
        self.duration = Histogram(
            "pocketllm_request_duration_seconds", "Time from request to its end, however it ended.", DURATION_BOUNDS_S
        )
        self.inter_token = Histogram(
            "pocketllm_inter_token_latency_seconds", "Time between tokens of a streamed choice.", TOKEN_BOUNDS_S
        )
        self.time_per_output_token = Histogram(
            "pocketllm_request_time_per_output_token_seconds",
            "(duration - time to first token) / (tokens - 1), where there is more than one token.",
            TOKEN_BOUNDS_S,
        )
        self.requests = LabelledCounter(
            "pocketllm_requests_total", "Accepted generation requests by how they ended.", ("outcome",)
        )
        self.http = LabelledCounter("pocketllm_http_requests_total", "HTTP responses.", ("route", "status"))
        self.http_duration = LabelledHistogram(
            "pocketllm_http_request_duration_seconds", "Time from a request's headers to its last byte.", "route",
            TTFT_BOUNDS_S,
        )  # fmt: skip
        self.errors = LabelledCounter(
            "pocketllm_http_errors_total", "Requests answered with an error, by its code.", ("route", "code")
        )
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.num_cached_tokens = 0
        self._queue: Queue | None = None

    def watch_queue(self, queue: Queue) -> None:
        """Show this queue's length and bound."""
        self._queue = queue

    def render(self, stats: EngineStats, num_active: int) -> bytes:
        """The whole page; ``stats`` and ``num_active`` are gauges of this moment."""
        lines: list[str] = []
        for part in (
            self.ttft, self.duration, self.inter_token, self.time_per_output_token, self.requests, self.http,
            self.http_duration, self.errors,
        ):  # fmt: skip
            lines += part.lines()
        details = stats.details
        queue_limit = self._queue.limit() if self._queue is not None else None
        for name, kind, value, help_text in (
            ("prompt_tokens_total", "counter", self.num_prompt_tokens, "Prompt tokens of ended requests."),
            ("generated_tokens_total", "counter", self.num_generated_tokens, "Tokens generated by ended requests."),
            ("cached_prompt_tokens_total", "counter", self.num_cached_tokens, "Of the prompt tokens, those reused."),
            ("queue_requests", "gauge", self._queue.num_inside if self._queue is not None else 0,
             "Generating requests that wait or run."),
            ("queue_limit", "gauge", queue_limit or 0, "Most of them at once; 0: bounded by the engine alone."),
            ("event_loop_tasks", "gauge", _num_tasks(), "Tasks of the server's event loop."),
            ("requests_active", "gauge", num_active, "Requests accepted and not ended, queued ones included."),
            ("requests_running", "gauge", stats.num_running, "Sequences in the engine's batch."),
            ("requests_waiting", "gauge", stats.num_waiting, "Sequences in the engine's queue."),
            ("slots_free", "gauge", stats.num_free_slots, "Sequences the engine could still take into its batch."),
            ("kv_blocks_free", "gauge", stats.num_free_blocks, "Free blocks of the key-value cache."),
            ("kv_blocks", "gauge", stats.num_blocks, "Blocks of the key-value cache."),
            ("preemptions_total", "counter", stats.num_preemptions, "Sequences set back for want of blocks."),
            ("engine_steps_total", "counter", stats.num_steps, "Steps of the engine."),
            ("prefix_cache_hits_total", "counter", stats.prefix_cache_hits, "Prompts that reused a prefix."),
            ("prefix_cache_misses_total", "counter", stats.prefix_cache_misses, "Prompts that reused nothing."),
            ("prefix_cache_reused_tokens_total", "counter", stats.prefix_cache_reused_tokens, "Prompt tokens reused."),
            ("prefix_cache_entries", "gauge", _number(details, "prefix_cache_entries"), "Prefixes kept."),
            ("prefix_cache_bytes", "gauge", _number(details, "prefix_cache_bytes"), "Bytes of prefixes kept."),
            ("prefix_cache_budget_bytes", "gauge", _number(details, "prefix_cache_budget_bytes"), "Bytes allowed."),
        ):  # fmt: skip
            lines += _head("pocketllm_" + name, help_text, kind)
            lines.append(f"pocketllm_{name} {value}")
        return ("\n".join(lines) + "\n").encode()


class RequestTimer:
    """Times one HTTP request for the histograms.

    Identities that hold whatever way events were merged: a streamed choice of n tokens adds n - 1 observations to the
    inter-token histogram; tokens that arrive together share the time since the last arrival; time to first token is
    recorded for streamed requests only.
    """

    def __init__(self, metrics: Metrics, *, streamed: bool) -> None:
        self._metrics = metrics
        self._streamed = streamed
        self._started_at = time.monotonic()
        self._first_at: float | None = None
        self._last_at: dict[int, float] = {}
        self._num_seen = 0

    def tokens(self, choice: int, count: int) -> None:
        """``count`` tokens of a streamed choice arrived."""
        if count <= 0:
            return
        now = time.monotonic()
        self._num_seen += count
        if self._first_at is None:
            self._first_at = now
            self._metrics.ttft.observe(now - self._started_at)
        last = self._last_at.get(choice)
        self._last_at[choice] = now
        intervals = count if last is not None else count - 1
        if intervals:
            self._metrics.inter_token.observe((now - (now if last is None else last)) / intervals, intervals)

    def end(self, outcome: str, usage: Usage | None, ttft_s: float | None) -> None:
        """The request is over. ``ttft_s`` is the engine's figure, used where nothing was streamed."""
        metrics = self._metrics
        duration = time.monotonic() - self._started_at
        metrics.duration.observe(duration)
        metrics.requests.add(outcome)
        if self._streamed:
            ttft_s = None if self._first_at is None else self._first_at - self._started_at
        num_tokens = usage.completion_tokens if usage is not None else self._num_seen
        if ttft_s is not None and num_tokens > 1:
            metrics.time_per_output_token.observe(max(0.0, duration - ttft_s) / (num_tokens - 1))
        metrics.num_generated_tokens += num_tokens
        if usage is not None:
            metrics.num_prompt_tokens += usage.prompt_tokens
            metrics.num_cached_tokens += usage.cached_tokens
        request = current_request()
        if request is not None:  # for its line in the access log
            request.finish_reason, request.usage, request.ttft_s = outcome, usage, ttft_s


def _head(name: str, help_text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _num_tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # no loop runs here
        return 0


def _number(details: dict[str, object], name: str) -> float:
    value = details.get(name, 0)
    return value if isinstance(value, int | float) else 0
