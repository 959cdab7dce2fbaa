"""The server's baseline: the same program with a handler that sends ready-made events, and no pipeline behind it.

Started by `server_load.py`. Same listener, Hypercorn and layers as `pocketllm serve`; every `--delay` seconds one more
token of each stream is due, and a handler that is late sends what is due as one event, as the pipeline does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from pocketllm_server.answers.sse import DONE, HEADERS
from pocketllm_server.app import App
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.layers.order import with_layers
from pocketllm_server.logs import configure_logging
from pocketllm_server.models.model import Model
from pocketllm_server.models.models import Models
from pocketllm_server.routes.probes import Ready
from pocketllm_server.serve import serve
from pocketllm_server.service import Service
from pocketllm_server.transport.http_io import read_body
from pocketllm_server.transport.listener import bind, url_of


class ReadyMade:
    """Answers every request with as many tokens as it asks for, one each step of a clock that all streams share."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._step = 0
        self._tick = asyncio.Event()

    async def clock(self) -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while True:
            await asyncio.sleep(started_at + (self._step + 1) * self._delay_s - loop.time())
            self._step = int((loop.time() - started_at) / self._delay_s)
            tick, self._tick = self._tick, asyncio.Event()
            tick.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_tokens = json.loads(await read_body(scope, receive, 1 << 20, 10.0))["max_tokens"]
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        sent, first_step = 0, self._step
        while sent < num_tokens:
            await self._tick.wait()
            due = min(self._step - first_step, num_tokens)
            if due > sent:
                await send({"type": "http.response.body", "body": event(" word" * (due - sent)), "more_body": True})
                sent = due
        await send({"type": "http.response.body", "body": event("", "length") + DONE, "more_body": False})


def event(text: str, finish_reason: str | None = None) -> bytes:
    """A chunk of the size that the pipeline's have."""
    reason = "null" if finish_reason is None else f'"{finish_reason}"'
    return (
        'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1700000000,'
        f'"model":"smollm2","choices":[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":{reason}}}]}}\n\n'
    ).encode()


class HandlerOnly(App):
    """The application with its routes replaced."""

    def __init__(self, service: Service, handler: ReadyMade) -> None:
        super().__init__(service)
        routes = [Route("/ready", Ready(service)), Route("/v1/completions", handler, methods=["POST"])]
        self._asgi = with_layers(Router(routes), service)


async def run(delay_s: float) -> int:
    settings = ServerSettings(served_model_name="smollm2", log_level="warning")
    configure_logging(settings.log_level, settings.log_format)
    handler = ReadyMade(delay_s)
    model = Model(AsyncLLM(EngineArgs(model="smollm2", backend="echo")), settings.served_model_name)
    app = HandlerOnly(Service(Models([model]), settings), handler)
    listener = bind("127.0.0.1", 0)
    print(f"Ready-made events at {url_of(listener)};", flush=True)
    clock = asyncio.create_task(handler.clock())
    try:
        return await serve(app, listener, lambda line: print(line, flush=True))
    finally:
        clock.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve ready-made events.")
    parser.add_argument("--delay", type=float, required=True, help="seconds between two tokens of a stream")
    sys.exit(asyncio.run(run(parser.parse_args().delay)))
