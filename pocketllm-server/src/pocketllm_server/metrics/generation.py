"""What is counted of one model's requests, and the timer of one of them."""

from __future__ import annotations

import time

from pocketllm.types import Usage
from pocketllm_server.metrics.bounds import DURATION_BOUNDS_S, TOKEN_BOUNDS_S, TTFT_BOUNDS_S
from pocketllm_server.metrics.instruments import Histogram, LabelledCounter


class ModelMetrics:
    """Everything that is counted of one model since the start. Used on the event loop alone."""

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
        self.instruments = (self.ttft, self.duration, self.inter_token, self.time_per_output_token, self.requests)
        """In the order of the page."""
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.num_cached_tokens = 0


class RequestTimer:
    """Times one HTTP request for the histograms.

    Identities that hold whatever way events were merged: a streamed choice of n tokens adds n - 1 observations to the
    inter-token histogram; tokens that arrive together share the time since the last arrival; time to first token is
    recorded for streamed requests only.
    """

    def __init__(self, metrics: ModelMetrics, *, streamed: bool) -> None:
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

    def end(self, outcome: str, usage: Usage | None, ttft_s: float | None) -> float | None:
        """The request is over. ``ttft_s`` is the engine's figure, used where nothing was streamed; returns the one that
        holds."""
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
        return ttft_s
