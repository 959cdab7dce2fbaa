from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.types import EngineStats, Usage
from pocketllm_server.metrics import (
    DURATION_BOUNDS_S,
    TOKEN_BOUNDS_S,
    TTFT_BOUNDS_S,
    Histogram,
    Metrics,
    RequestTimer,
)
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, client_of

Samples = dict[str, float]


def parse(text: str) -> Samples:
    """Samples by name and labels; insists on a HELP and a TYPE for each family."""
    samples: Samples = {}
    typed = set(re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram)$", text, re.MULTILINE))
    helped = set(re.findall(r"^# HELP (\S+) .+$", text, re.MULTILINE))
    assert typed == helped
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, value = line.rsplit(" ", 1)
        family = re.sub(r"_(bucket|sum|count)$", "", name.split("{")[0])
        assert family in typed or name.split("{")[0] in typed
        assert name not in samples
        samples[name] = float(value)
    return samples


def test_bounds_are_the_documented_ones() -> None:
    assert (len(DURATION_BOUNDS_S), DURATION_BOUNDS_S[0], DURATION_BOUNDS_S[-1]) == (21, 0.3, 7680.0)
    assert (len(TTFT_BOUNDS_S), TTFT_BOUNDS_S[0], TTFT_BOUNDS_S[-1]) == (22, 0.001, 2560.0)
    assert (len(TOKEN_BOUNDS_S), TOKEN_BOUNDS_S[0], TOKEN_BOUNDS_S[-1]) == (19, 0.01, 80.0)
    for bounds in (DURATION_BOUNDS_S, TTFT_BOUNDS_S, TOKEN_BOUNDS_S):
        assert list(bounds) == sorted(set(bounds))


@given(st.lists(st.floats(0, 1e5), max_size=40))
def test_histogram_buckets_are_cumulative(values: list[float]) -> None:
    histogram = Histogram("h", "help", TOKEN_BOUNDS_S)
    for value in values:
        histogram.observe(value)
    samples = parse("\n".join(histogram.lines()))
    for bound in TOKEN_BOUNDS_S:
        assert samples[f'h_bucket{{le="{bound:g}"}}'] == sum(value <= bound for value in values)
    assert samples["h_count"] == samples['h_bucket{le="+Inf"}'] == len(values)
    assert samples["h_sum"] == pytest.approx(sum(values))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=30))
def test_inter_token_count_is_tokens_minus_one_per_choice(arrivals: list[tuple[int, int]]) -> None:
    metrics = Metrics()
    timer = RequestTimer(metrics, streamed=True)
    totals: dict[int, int] = {}
    for choice, count in arrivals:
        timer.tokens(choice, count)
        totals[choice] = totals.get(choice, 0) + count
    num_tokens = sum(totals.values())
    timer.end("stop", Usage(prompt_tokens=3, completion_tokens=num_tokens), None)
    assert metrics.inter_token.count == sum(total - 1 for total in totals.values() if total)
    assert metrics.ttft.count == (1 if num_tokens else 0)
    assert metrics.time_per_output_token.count == (1 if num_tokens > 1 else 0)
    assert metrics.duration.count == 1
    assert metrics.num_generated_tokens == num_tokens


async def test_identities_over_http() -> None:
    model = FakeLLM()
    async with client_of(model) as client:
        for body in ({}, {"stream": True}, {"stream": True, "n": 2, "temperature": 1}, {"max_tokens": 1}):
            assert (await client.post(CHAT, json={**HELLO, **body})).status_code == 200
        await client.post(COMPLETIONS, json={"prompt": ["a", "b"], "stream": True})
        model.script = Script(fail_after=1)
        assert (await client.post(CHAT, json=HELLO)).status_code == 500
        response = await client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = parse(response.text)
    # Streams of 5 tokens (the stop token counts): one, two choices, two prompts.
    assert samples["pocketllm_inter_token_latency_seconds_count"] == 5 * 4
    assert samples["pocketllm_ttft_seconds_count"] == 3
    assert samples["pocketllm_request_duration_seconds_count"] == 6
    assert samples["pocketllm_request_time_per_output_token_seconds_count"] == 4
    assert samples["pocketllm_generated_tokens_total"] == 5 + 5 + 10 + 1 + 10
    assert samples['pocketllm_requests_total{outcome="stop"}'] == 4
    assert samples['pocketllm_requests_total{outcome="engine_error"}'] == 1
    assert samples['pocketllm_http_requests_total{route="/v1/chat/completions",status="500"}'] == 1
    for name in ("requests_running", "requests_waiting", "requests_active", "slots_free"):
        assert f"pocketllm_{name}" in samples
    for name in ("hits_total", "misses_total", "reused_tokens_total", "entries", "bytes", "budget_bytes"):
        assert f"pocketllm_prefix_cache_{name}" in samples
    assert samples["pocketllm_requests_active"] == 0


def test_gauges_come_from_the_engine() -> None:
    stats = EngineStats(num_running=3, num_waiting=2, num_free_slots=1, details={"prefix_cache_bytes": 77})
    samples = parse(Metrics().render(stats, 5).decode())
    assert samples["pocketllm_requests_running"] == 3
    assert samples["pocketllm_requests_waiting"] == 2
    assert samples["pocketllm_slots_free"] == 1
    assert samples["pocketllm_requests_active"] == 5
    assert samples["pocketllm_prefix_cache_bytes"] == 77
