"""What is counted of the HTTP responses, whichever model they are about."""

from __future__ import annotations

from pocketllm_server.metrics.bounds import TTFT_BOUNDS_S
from pocketllm_server.metrics.instruments import LabelledCounter, LabelledHistogram


class HTTPMetrics:
    """Everything that is counted of responses since the start. Used on the event loop alone."""

    def __init__(self) -> None:
        self.responses = LabelledCounter("pocketllm_http_requests_total", "HTTP responses.", ("route", "status"))
        self.duration = LabelledHistogram(
            "pocketllm_http_request_duration_seconds", "Time from a request's headers to its last byte.", "route",
            TTFT_BOUNDS_S,
        )  # fmt: skip
        self.errors = LabelledCounter(
            "pocketllm_http_errors_total", "Requests answered with an error, by its code.", ("route", "code")
        )
