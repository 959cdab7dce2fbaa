from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.types import EngineStats, Usage
from pocketllm_server.metrics.bounds import DURATION_BOUNDS_S, TOKEN_BOUNDS_S, TTFT_BOUNDS_S
from pocketllm_server.metrics.generation import ModelMetrics, RequestTimer
from pocketllm_server.metrics.http import HTTPMetrics
from pocketllm_server.metrics.instruments import Histogram, LabelledHistogram
from pocketllm_server.metrics.page import ModelSample, render
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, RawExchange, client_of, until

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
    metrics = ModelMetrics()
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


async def test_counts_add_up_over_http() -> None:
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
    sample = ModelSample(metrics=ModelMetrics(), stats=stats, num_active=5, num_queued=0, queue_limit=None)
    samples = parse(render(HTTPMetrics(), [sample]).decode())
    assert samples["pocketllm_requests_running"] == 3
    assert samples["pocketllm_requests_waiting"] == 2
    assert samples["pocketllm_slots_free"] == 1
    assert samples["pocketllm_requests_active"] == 5
    assert samples["pocketllm_prefix_cache_bytes"] == 77


async def test_every_response_is_counted_once_and_timed_by_route() -> None:
    async with client_of(FakeLLM()) as client:
        asked = [
            ("GET", "/health", {}), ("GET", "/v1/models", {}), ("GET", "/v1/models", {}), ("GET", "/nope/1", {}),
            ("GET", "/nope/2", {}), ("POST", CHAT, HELLO), ("POST", CHAT, {"messages": 1}), ("PUT", CHAT, {}),
            ("DELETE", "/v1/requests/a", {}), ("DELETE", "/v1/requests/b", {}),
        ]  # fmt: skip
        for method, path, body in asked:
            await client.request(method, path, json=body)
        samples = parse((await client.get("/metrics")).text)
    count = re.compile(r'pocketllm_http_requests_total\{route="([^"]+)",status="(\d+)"\}')
    counted = {match.groups(): value for name, value in samples.items() if (match := count.fullmatch(name))}
    assert sum(counted.values()) == len(asked)
    assert counted["other", "404"] == 2
    assert counted["/v1/requests/{request_id}", "404"] == 2
    for route in {route for route, _ in counted}:
        name = "pocketllm_http_request_duration_seconds"
        total = sum(value for (each, _), value in counted.items() if each == route)
        assert samples[f'{name}_count{{route="{route}"}}'] == total
        assert samples[f'{name}_bucket{{route="{route}",le="+Inf"}}'] == total
        assert samples[f'{name}_sum{{route="{route}"}}'] >= 0
    errors = sum(value for name, value in samples.items() if name.startswith("pocketllm_http_errors_total"))
    assert errors == sum(value for (_, status), value in counted.items() if status >= "400")


async def test_counters_survive_requests_that_were_cancelled_or_lost() -> None:
    model = FakeLLM(Script(endless=True, pause_s=0.002))
    async with client_of(model) as client:
        task = asyncio.create_task(client.post(CHAT, json={**HELLO, "stream": True, "request_id": "r"}))
        await until(lambda: model.active)
        before = parse((await client.get("/metrics")).text)
        assert (before["pocketllm_requests_active"], before["pocketllm_queue_requests"]) == (1, 1)
        await client.delete("/v1/requests/r")
        await task
        lost = RawExchange(client.app, "POST", COMPLETIONS, b'{"prompt": "x", "stream": true}')  # type: ignore[attr-defined]
        running = lost.run()
        await until(lambda: model.active and lost.body)
        lost.disconnect()
        await running
        samples = parse((await client.get("/metrics")).text)
    outcomes = {name: value for name, value in samples.items() if name.startswith("pocketllm_requests_total")}
    assert outcomes == {
        'pocketllm_requests_total{outcome="cancelled"}': 1,
        'pocketllm_requests_total{outcome="disconnected"}': 1,
    }
    assert samples["pocketllm_request_duration_seconds_count"] == 2
    assert samples['pocketllm_http_requests_total{route="/v1/completions",status="499"}'] == 1
    assert samples["pocketllm_generated_tokens_total"] > 0
    assert (samples["pocketllm_requests_active"], samples["pocketllm_queue_requests"]) == (0, 0)


async def test_the_queue_and_the_tasks_are_shown() -> None:
    async with client_of(FakeLLM()) as client:
        unbounded = parse((await client.get("/metrics")).text)
    async with client_of(FakeLLM(), max_queue=5) as client:
        bounded = parse((await client.get("/metrics")).text)
    assert unbounded["pocketllm_queue_limit"] == 0
    assert bounded["pocketllm_queue_limit"] == 8 + 5
    assert bounded["pocketllm_event_loop_tasks"] >= 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e4)), max_size=30))
def test_labelled_histograms_count_by_label(values: list[tuple[str, float]]) -> None:
    histogram = LabelledHistogram("h", "help", "route", TTFT_BOUNDS_S)
    for label, value in values:
        histogram.observe(label, value)
    samples = parse("\n".join(histogram.lines()))
    for label in {label for label, _ in values}:
        mine = [value for each, value in values if each == label]
        assert samples[f'h_count{{route="{label}"}}'] == len(mine) == samples[f'h_bucket{{route="{label}",le="+Inf"}}']
        assert samples[f'h_sum{{route="{label}"}}'] == pytest.approx(sum(mine))
