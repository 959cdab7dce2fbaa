"""TLS: the server speaks it with the operator's certificate, or says what is wrong with that."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization  # trustme's own dependency

from pocketllm.errors import ConfigurationError
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.transport.listener import bind, url_of
from pocketllm_server.transport.tls import tls_context
from tests.server.fake_llm import FakeLLM
from tests.server.http_app import CHAT, HELLO, events_of
from tests.server.live import live


class Certificate(NamedTuple):
    """Paths of a certificate for 127.0.0.1, of its key, and of the authority that a client has to trust."""

    certfile: str
    keyfile: str
    cafile: str


def make_certificate(folder: Path, *, password: str | None = None) -> Certificate:
    """Written without any program of the system, so that these tests run wherever Python does."""
    folder.mkdir(exist_ok=True)
    made = Certificate(*(str(folder / name) for name in ("cert.pem", "key.pem", "ca.pem")))
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1", "localhost")
    Path(made.certfile).write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    Path(made.keyfile).write_bytes(_locked(leaf.private_key_pem.bytes(), password))
    authority.cert_pem.write_to_path(made.cafile)
    return made


def _locked(key: bytes, password: str | None) -> bytes:
    if password is None:
        return key
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def test_answers_and_streams_pass_over_tls(certificate: Certificate) -> None:
    certfile, keyfile, cafile = certificate
    trust = ssl.create_default_context(cafile=cafile)
    async with live(FakeLLM(), ssl_certfile=certfile, ssl_keyfile=keyfile) as server:
        url = server.url.replace("http://", "https://")
        async with httpx.AsyncClient(base_url=url, verify=trust) as client:
            assert (await client.get("/ready")).status_code == 200
            answer = await client.post(CHAT, json={**HELLO, "stream": True})
            assert events_of(answer.text)[-1]["choices"][0]["finish_reason"] == "stop"
        with pytest.raises(httpx.HTTPError):  # a plain request gets no plain answer
            async with httpx.AsyncClient(base_url=server.url) as client:
                await client.get("/ready")


async def test_old_versions_are_refused(certificate: Certificate) -> None:
    context = tls_context(ServerSettings(ssl_certfile=certificate[0], ssl_keyfile=certificate[1]))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


async def test_a_client_that_does_not_trust_it_harms_nobody(certificate: Certificate) -> None:
    certfile, keyfile, cafile = certificate
    async with live(FakeLLM(), ssl_certfile=certfile, ssl_keyfile=keyfile) as server:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", server.port, ssl=ssl.create_default_context())
        trust = ssl.create_default_context(cafile=cafile)
        async with httpx.AsyncClient(base_url=server.url.replace("http://", "https://"), verify=trust) as client:
            assert (await client.get("/ready")).status_code == 200


def test_a_tls_key_may_have_a_password(tmp_path: Path) -> None:
    certfile, keyfile, _ = make_certificate(tmp_path / "locked", password="open sesame")
    assert tls_context(ServerSettings(ssl_certfile=certfile, ssl_keyfile=keyfile, ssl_keyfile_password="open sesame"))
    for password in ("wrong", None):
        with pytest.raises(ConfigurationError, match="cannot be used"):
            tls_context(ServerSettings(ssl_certfile=certfile, ssl_keyfile=keyfile, ssl_keyfile_password=password))


def test_certificate_and_key_may_share_a_file(tmp_path: Path, certificate: Certificate) -> None:
    both = tmp_path / "both.pem"
    both.write_text("".join(Path(path).read_text() for path in certificate[:2]))
    assert tls_context(ServerSettings(ssl_certfile=str(both))) is not None


def test_a_wrong_certificate_or_key_is_named(tmp_path: Path, certificate: Certificate) -> None:
    other = make_certificate(tmp_path / "other")
    (tmp_path / "garbage").write_text("no certificate")
    for certfile, keyfile in (
        (str(tmp_path / "absent"), certificate[1]),
        (certificate[0], str(tmp_path / "absent")),
        (certificate[0], other[1]),
        (certificate[0], None),
        (str(tmp_path / "garbage"), None),
    ):
        with pytest.raises(ConfigurationError, match="--ssl-certfile") as caught:
            tls_context(ServerSettings(ssl_certfile=certfile, ssl_keyfile=keyfile))
        assert caught.value.param == "ssl_certfile"
    with pytest.raises(ConfigurationError, match="needs the certificate"):
        ServerSettings(ssl_keyfile=certificate[1])


def test_the_address_of_a_tls_server_says_https() -> None:
    listener = bind("127.0.0.1", 0)
    assert url_of(listener, secure=True).startswith("https://127.0.0.1:")
    listener.close()
