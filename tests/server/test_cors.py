"""Pages of other origins: none by default, those that are named otherwise."""

from __future__ import annotations

import httpx
import pytest

from pocketllm.errors import ConfigurationError
from pocketllm_server.config.settings import ServerSettings
from tests.server.fake_llm import FakeLLM
from tests.server.http_app import CHAT, HELLO, client_of

CHAT_PAGE = "https://chat.example.org"


def cors_headers(response: httpx.Response) -> list[str]:
    return [name for name in response.headers if name.startswith("access-control-")]


async def preflight(client: httpx.AsyncClient, origin: str, headers: str = "authorization") -> httpx.Response:
    asked = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": headers}
    return await client.options(CHAT, headers=asked)


async def test_without_origins_no_answer_has_cors_headers() -> None:
    async with client_of(FakeLLM()) as client:
        for response in (
            await client.get("/v1/models", headers={"origin": CHAT_PAGE}),
            await preflight(client, CHAT_PAGE),
        ):
            assert cors_headers(response) == []


async def test_a_named_origin_may_call() -> None:
    async with client_of(FakeLLM(), cors_origins=(CHAT_PAGE,)) as client:
        asked = await preflight(client, CHAT_PAGE, "authorization,content-type,x-stainless-os")
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == CHAT_PAGE
        answer = await client.post(CHAT, json=HELLO, headers={"origin": CHAT_PAGE})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == CHAT_PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers


async def test_another_origin_may_not() -> None:
    async with client_of(FakeLLM(), cors_origins=(CHAT_PAGE,)) as client:
        refused = await preflight(client, "https://evil.example.org")
        assert refused.status_code == 400
        assert "access-control-allow-origin" not in refused.headers
        answer = await client.get("/v1/models", headers={"origin": "https://evil.example.org"})
        assert "access-control-allow-origin" not in answer.headers


async def test_a_page_can_read_errors_and_preflights_need_no_key() -> None:
    async with client_of(FakeLLM(), cors_origins=(CHAT_PAGE,), api_keys=("k",)) as client:
        assert (await preflight(client, CHAT_PAGE)).status_code == 200
        refused = await client.post(CHAT, json=HELLO, headers={"origin": CHAT_PAGE})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == CHAT_PAGE
        assert refused.headers["x-request-id"]


async def test_every_origin_when_it_is_said() -> None:
    async with client_of(FakeLLM(), cors_origins=("*",)) as client:
        answer = await client.get("/v1/models", headers={"origin": "http://localhost:3000"})
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_credentials_are_allowed_when_asked_for() -> None:
    async with client_of(FakeLLM(), cors_origins=(CHAT_PAGE,), cors_credentials=True) as client:
        answer = await client.get("/v1/models", headers={"origin": CHAT_PAGE})
    assert answer.headers["access-control-allow-credentials"] == "true"


async def test_a_page_may_read_a_stream() -> None:
    async with client_of(FakeLLM(), cors_origins=(CHAT_PAGE,)) as client:
        answer = await client.post(CHAT, json={**HELLO, "stream": True}, headers={"origin": CHAT_PAGE})
    assert answer.headers["access-control-allow-origin"] == CHAT_PAGE
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("origin", ["chat.example.org", "https://chat.example.org/", "https://", "://x", ""])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="not an origin"):
        ServerSettings(cors_origins=(origin,))


def test_every_origin_with_credentials_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="name the origins"):
        ServerSettings(cors_origins=("*",), cors_credentials=True)
