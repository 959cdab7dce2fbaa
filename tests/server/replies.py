"""Accepted requests for tests of replies alone: nothing runs behind them."""

from __future__ import annotations

from pocketllm.types import GenerationRequest
from pocketllm_server.answers.generation import Generation
from pocketllm_server.models.active_requests import ActiveRequest
from pocketllm_server.models.model import Model
from tests.server.fake_llm import FakeLLM, FakeStream


def accepted(request: GenerationRequest | None = None, *, response_id: str = "id") -> Generation:
    """One prompt of a scripted model named "tiny"."""
    client = FakeLLM()
    client.status = "ready"
    request = request or GenerationRequest(prompt_tokens=(1, 2, 3))
    entry = ActiveRequest(request.request_id, response_id)
    generation = Generation(Model(client, "tiny"), entry, [request], created=1)
    generation.streams.append(FakeStream(client, request))
    return generation
