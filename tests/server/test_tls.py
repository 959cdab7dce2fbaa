"""TLS: the server speaks it with the operator's certificate, or says what is wrong with that."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from pocketllm.errors import ConfigurationError
from pocketllm_server.listener import bind, url_of
from pocketllm_server.settings import ServerSettings
from pocketllm_server.tls import tls_context
from tests.server.fake_llm import FakeLLM
from tests.server.http_app import CHAT, HELLO, events_of
from tests.server.live import live


def make_certificate(folder: Path, *, password: str | None = None) -> tuple[str, str]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    folder.mkdir(exist_ok=True)
    certificate, key = folder / "cert.pem", folder / "key.pem"
    protect = ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", *protect),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return str(certificate), str(key)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def test_answers_and_streams(certificate: tuple[str, str]) -> None:
    certfile, keyfile = certificate
    trust = ssl.create_default_context(cafile=certfile)
    async with live(FakeLLM(), ssl_certfile=certfile, ssl_keyfile=keyfile) as server:
        url = server.url.replace("http://", "https://")
        async with httpx.AsyncClient(base_url=url, verify=trust) as client:
            assert (await client.get("/ready")).status_code == 200
            answer = await client.post(CHAT, json={**HELLO, "stream": True})
            assert events_of(answer.text)[-1]["choices"][0]["finish_reason"] == "stop"
        with pytest.raises(httpx.HTTPError):  # a plain request gets no plain answer
            async with httpx.AsyncClient(base_url=server.url) as client:
                await client.get("/ready")


async def test_old_versions_are_refused(certificate: tuple[str, str]) -> None:
    context = tls_context(ServerSettings(ssl_certfile=certificate[0], ssl_keyfile=certificate[1]))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


async def test_a_client_that_does_not_trust_it_harms_nobody(certificate: tuple[str, str]) -> None:
    certfile, keyfile = certificate
    async with live(FakeLLM(), ssl_certfile=certfile, ssl_keyfile=keyfile) as server:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", server.port, ssl=ssl.create_default_context())
        trust = ssl.create_default_context(cafile=certfile)
        async with httpx.AsyncClient(base_url=server.url.replace("http://", "https://"), verify=trust) as client:
            assert (await client.get("/ready")).status_code == 200


def test_a_key_with_a_password(tmp_path: Path) -> None:
    certfile, keyfile = make_certificate(tmp_path / "locked", password="open sesame")
    assert tls_context(ServerSettings(ssl_certfile=certfile, ssl_keyfile=keyfile, ssl_keyfile_password="open sesame"))
    for password in ("wrong", None):
        with pytest.raises(ConfigurationError, match="cannot be used"):
            tls_context(ServerSettings(ssl_certfile=certfile, ssl_keyfile=keyfile, ssl_keyfile_password=password))


def test_one_file_for_both(tmp_path: Path, certificate: tuple[str, str]) -> None:
    both = tmp_path / "both.pem"
    both.write_text("".join(Path(path).read_text() for path in certificate))
    assert tls_context(ServerSettings(ssl_certfile=str(both))) is not None


def test_files_that_do_not_do(tmp_path: Path, certificate: tuple[str, str]) -> None:
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


def test_the_address_says_so() -> None:
    listener = bind("127.0.0.1", 0)
    assert url_of(listener, secure=True).startswith("https://127.0.0.1:")
    listener.close()
