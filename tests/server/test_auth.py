"""API keys: who is asked, what is taken, and that nothing tells a good guess from a bad one."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from pocketllm.errors import ConfigurationError
from pocketllm_server.config.key_file import read_key_file
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.layers import auth
from tests.server.fake_llm import FakeLLM
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, client_of

KEYS = ("first-key", "second-key")
ROUTES = [
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("POST", CHAT),
    ("POST", COMPLETIONS),
    ("DELETE", "/v1/requests/x"),
    ("GET", "/no/such/path"),
    ("POST", "/health/"),
    ("GET", "//health"),
    ("GET", "/health/../v1/models"),
]


@pytest.mark.parametrize("path", ["/health", "/alive", "/ready"])
async def test_probes_carry_no_key(path: str) -> None:
    async with client_of(FakeLLM(), api_keys=KEYS) as client:
        assert (await client.get(path)).status_code in (200, 503)


@pytest.mark.parametrize("method, path", ROUTES)
async def test_every_route_but_the_probes_asks_for_a_key(method: str, path: str) -> None:
    async with client_of(FakeLLM(), api_keys=KEYS) as client:
        response = await client.request(method, path, json=HELLO)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "missing_api_key")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("header", ["Authorization: Bearer %s", "authorization: bearer  %s", "X-API-Key: %s"])
async def test_each_key_in_each_spelling(key: str, header: str) -> None:
    name, _, value = (header % key).partition(": ")
    async with client_of(FakeLLM(), api_keys=KEYS) as client:
        assert (await client.get("/v1/models", headers={name: value})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer first-ke"},
        {"authorization": "Bearer first-key2"},
        {"authorization": "Bearer FIRST-KEY"},
        {"x-api-key": "first-key,second-key"},
    ],
)
async def test_a_wrong_key_is_answered_with_401(headers: dict[str, str]) -> None:
    async with client_of(FakeLLM(), api_keys=KEYS) as client:
        response = await client.post(CHAT, json=HELLO, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic first-key", "first-key"])
async def test_a_header_without_a_key_is_answered_with_401(value: str) -> None:
    async with client_of(FakeLLM(), api_keys=KEYS) as client:
        response = await client.get("/v1/models", headers={"authorization": value})
    assert (response.status_code, response.json()["error"]["code"]) == (401, "missing_api_key")


async def test_one_good_header_of_two_is_enough() -> None:
    """A proxy that adds a key of its own must not shut its clients out."""
    headers = {"authorization": "Bearer of-the-proxy", "x-api-key": "first-key"}
    async with client_of(FakeLLM(), api_keys=KEYS) as client:
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


async def test_the_engine_is_not_reached_without_a_key() -> None:
    model = FakeLLM()
    async with client_of(model, api_keys=KEYS) as client:
        await client.post(CHAT, json=HELLO)
    assert model.requests == []


async def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return hmac.compare_digest(left, right)

    class Watched:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(auth, "hmac", Watched)
    async with client_of(FakeLLM(), api_keys=KEYS) as client:
        for key in ("first-key", "second-key", "x", "x" * 500):
            await client.get("/v1/models", headers={"x-api-key": key})
    # Always every key, always digests of one length.
    assert compared == [(32, 32)] * 8


async def test_without_keys_nobody_is_asked() -> None:
    async with client_of(FakeLLM()) as client:
        assert (await client.get("/v1/models", headers={"authorization": "Bearer whatever"})).status_code == 200


async def test_the_prefix_of_a_proxy_opens_nothing() -> None:
    """The path that is checked is the path that is routed."""
    async with client_of(FakeLLM(), api_keys=KEYS, root_path="/llm") as client:
        client._transport.root_path = "/llm"  # type: ignore[attr-defined]  # what Hypercorn puts into the scope
        assert (await client.get("/llm/health")).status_code == 200
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/llm/v1/models")).status_code == 401
        allowed = await client.get("/llm/v1/models", headers={"x-api-key": "first-key"})
        assert allowed.status_code == 200


def test_a_key_file_holds_one_key_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# of the team\nfirst-key\n\n  second-key  \n")
    assert read_key_file(str(path)) == KEYS
    path.write_text("# nothing\n\n")
    with pytest.raises(ConfigurationError, match="holds no key"):
        read_key_file(str(path))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_key_file(str(tmp_path / "absent"))


@pytest.mark.parametrize("key", ["", "with space", "schlüssel", "line\nbreak"])
def test_keys_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(ConfigurationError, match="choose another") as caught:
        ServerSettings(api_keys=(key,))
    assert not key or key not in caught.value.message
