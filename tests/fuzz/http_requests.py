"""Malformed requests against the HTTP application: no 5xx, no hang, errors in one shape.

Run for a while with ``python tests/fuzz/http_requests.py --seconds 60``; the test suite runs a fixed number of them
with a fixed seed.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

if __name__ == "__main__":  # started as a script: make the test packages importable
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pocketllm_server.app import App, create_app
from tests.server.fake_llm import EVERYTHING, FIXED, GUIDE, FakeLLM, Script
from tests.server.http_app import CHAT, COMPLETIONS, RawExchange, running

TIMEOUT_S = 10.0

VALID: dict[str, dict[str, Any]] = {
    CHAT: {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "What is 2+2?"}], "name": "me"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "4"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
        "response_format": {"type": "text"},
        "logprobs": True,
        "top_logprobs": 2,
        "reasoning_effort": "low",
        "thinking_mode": "chat",
        "chat_template_kwargs": {"a": 1},
        "stream_options": {"include_usage": False},
        "add_generation_prompt": True,
        "drop_thinking": False,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    },
    COMPLETIONS: {"prompt": "Once upon a time", "logprobs": 1, "echo": False, "best_of": 1, "suffix": ""},
}
SHARED: dict[str, Any] = {
    "max_tokens": 4, "max_completion_tokens": 4, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1,
    "n": 2, "stop": ["END", ""], "stop_token_ids": [3], "frequency_penalty": 0.1, "presence_penalty": 0.1,
    "repetition_penalty": 1.1, "logit_bias": {"5": 1.5}, "min_tokens": 1, "ignore_eos": False, "user": "u",
    "model": "m", "stream": False, "request_id": "r",
}  # fmt: skip

NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1.5, -0.0, 1e308, 5e-324, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**300, "",
    "a", "text", "auto", "\0", "é\u202e😀", "a" * 3000, "{{ messages }}", "{% raw %}", [], [None], [[]], [[[]]], [1e9],
    [1, "a"], {}, {"": None}, {"type": "text"}, {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}},
    {"a": {"b": {"c": {}}}}, [{"role": "user", "content": "x"}], [{"role": 5}], [{"role": "user"}], {"-1": 0},
    {"x": 1},
)  # fmt: skip
PATHS = (CHAT, COMPLETIONS)
OTHER_PATHS = ("/v1/requests/r", "/v1/models", "/ready", "/metrics", "/nope", "//")
METHODS = ("POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW")
TYPES = ("application/json",) * 40 + ("", "text/plain", "application/json; charset=\xff", "multipart/form-data")


def random_value(rng: random.Random, depth: int = 0) -> Any:
    if depth < 3 and rng.random() < 0.2:
        if rng.random() < 0.5:
            return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
        keys = ("role", "content", "type", "text", "name", "function", "arguments", "parameters", "schema", "5", "")
        return {rng.choice(keys): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return copy.deepcopy(rng.choice(NASTY))  # a mutation must not change the list


def mutate_value(rng: random.Random, value: Any) -> Any:
    """Replace something somewhere inside."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        return {**value, key: mutate_value(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return [*value[:index], mutate_value(rng, value[index]), *value[index + 1 :]]
    return random_value(rng)


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Cut, flip, insert or repeat bytes."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            del out[at:]
        elif kind == 1 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 2:
            out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        else:
            out[at:at] = rng.choice(
                (b"[" * 2000, b'{"a":' * 2000, b"1" * 5000, b'"', b"\\ud800", b"\xed\xa0\x80", b"NaN")
            )
    return bytes(out)


def random_body(rng: random.Random, path: str) -> bytes:
    fields = {**VALID.get(path, {}), **SHARED}
    body: Any = {key: value for key, value in fields.items() if key in ("messages", "prompt") or rng.random() < 0.2}
    for _ in range(rng.randrange(4)):
        body = mutate_value(rng, body)
    if rng.random() < 0.3 and isinstance(body, dict):
        body[rng.choice(list(fields))] = random_value(rng)
    if isinstance(body, dict) and rng.random() < 0.3:
        body["stream"] = True
    try:
        data = msgspec.json.encode(body)
    except (msgspec.EncodeError, OverflowError):
        data = json.dumps(body).encode()  # integers of any size
    return mutate_bytes(rng, data) if rng.random() < 0.25 else data


def random_exchange(rng: random.Random, app: App) -> RawExchange:
    usual = rng.random() < 0.9
    path = rng.choice(PATHS if usual else OTHER_PATHS)
    body = random_body(rng, path)
    headers = {"content-type": rng.choice(TYPES)}
    if rng.random() < 0.02:
        headers["content-length"] = rng.choice(("0", "-1", "x", str(10**18), "99999999999999999999"))
    exchange = RawExchange(app, "POST" if usual else rng.choice(METHODS), path, body, headers)
    if rng.random() < 0.05:
        exchange.disconnect()
    return exchange


def check(exchange: RawExchange) -> None:
    """Raises AssertionError for an answer that no client may get."""
    status = exchange.status
    if status is None:
        return  # the client had left
    assert status < 500, (status, exchange.body[:500])
    if status >= 400:
        error = json.loads(exchange.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
    ended = not exchange.sent[-1].get("more_body", False)
    assert ended or exchange.left, "the answer never ended"


async def fuzz(app: App, rng: random.Random, *, max_requests: int | None = None, seconds: float | None = None) -> int:
    """Send random requests one after the other; returns how many. The failing one is named by its number and seed."""
    started_at = time.monotonic()
    count = 0
    while (max_requests is None or count < max_requests) and (
        seconds is None or time.monotonic() - started_at < seconds
    ):
        seed = rng.getrandbits(64)
        exchange = random_exchange(random.Random(seed), app)
        try:
            await asyncio.wait_for(exchange.run(), TIMEOUT_S)
            check(exchange)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"request {count}, seed {seed}: {type(error).__name__} {error}") from error
        count += 1
    return count


def scripted_apps() -> list[App]:
    """One application per capability set."""
    script = Script(texts=("Hello", " wor", "ld"), reasoning="hm")
    return [create_app(FakeLLM(script, capabilities)) for capabilities in (EVERYTHING, GUIDE, FIXED)]


async def _main(seconds: float, seed: int) -> None:
    rng = random.Random(seed)
    for app in scripted_apps():
        async with running(app):
            while not app.service.models.default.readiness.verdict().ready:  # noqa: ASYNC110  # once, at the start
                await asyncio.sleep(0.01)
            count = await fuzz(app, rng, seconds=seconds / 3)
            print(f"{count} requests, no 5xx, no hang")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    asyncio.run(_main(arguments.seconds, arguments.seed))
