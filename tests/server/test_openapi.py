"""``/openapi.json``: complete, tied to the Structs and tables, and true."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from pocketllm_server.app import create_app
from pocketllm_server.layers.route_labels import RouteLabels
from pocketllm_server.routes.openapi_document import OPERATIONS, TABLES, build_document
from tests.server.fake_llm import FakeLLM
from tests.server.http_app import client_of
from tests.server.live import live

DOCUMENT = build_document()


async def test_served_document_is_the_built_one() -> None:
    async with client_of(FakeLLM(), root_path="/llm") as client:
        first = await client.get("/openapi.json")
        second = await client.get("/openapi.json")
    assert first.headers["content-type"] == "application/json"
    assert first.json() == msgspec.json.decode(msgspec.json.encode(build_document("/llm")))
    assert first.content == second.content
    assert first.json()["servers"] == [{"url": "/llm"}]


def test_every_route_is_described_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    before = RouteLabels.__init__

    def watched(self: RouteLabels, routes: Any) -> None:
        seen.extend(routes)
        before(self, routes)

    monkeypatch.setattr(RouteLabels, "__init__", watched)
    create_app(FakeLLM())
    routed = {
        (method.lower(), route.path.replace(":path}", "}"))
        for route in seen
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert routed == {(operation.method, operation.path) for operation in OPERATIONS}
    assert routed == {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}


def test_the_readme_names_every_route(repository: Path) -> None:
    text = (repository / "pocketllm-server/README.md").read_text(encoding="utf-8")
    named = re.findall(r"`(GET|POST|DELETE) (/[^`]*)`", text)
    assert sorted(named) == sorted((operation.method.upper(), operation.path) for operation in OPERATIONS)


def test_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    references = list(_references(DOCUMENT))
    assert len(references) > 40
    for reference in references:
        assert reference.removeprefix("#/components/schemas/") in schemas


def _references(value: Any) -> Any:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


@pytest.mark.parametrize("shape", TABLES, ids=lambda shape: shape.__name__)
def test_every_field_of_a_body_is_explained(shape: Any) -> None:
    properties = DOCUMENT["components"]["schemas"][shape.__name__]["properties"]
    assert set(properties) == set(shape.__struct_fields__)
    for name, schema in properties.items():
        assert schema.get("description"), name


def test_the_document_tells_what_each_field_needs() -> None:
    properties = DOCUMENT["components"]["schemas"]["ChatBody"]["properties"]
    assert properties["min_p"]["x-pocketllm-needs"] == "supports_min_p"
    assert properties["user"]["x-pocketllm-inert"] is True
    responses = DOCUMENT["components"]["schemas"]["ResponsesBody"]["properties"]
    assert responses["store"]["x-pocketllm-accepted"] == [False]


def test_patterns_of_the_document_are_ecmascript() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    patterns = [
        each["pattern"] for each in schemas["ChatBody"]["properties"]["request_id"]["anyOf"] if "pattern" in each
    ]
    assert patterns
    assert all("\\Z" not in pattern for pattern in patterns)


async def test_schemathesis_finds_no_answer_that_is_not_documented(smollm2_path: Path, tmp_path: Path) -> None:
    """Every boundary of every schema, right and wrong, over a socket: answers are as documented, and none is a 5xx."""
    args = EngineArgs(model=str(smollm2_path), backend="echo", placement="thread", max_model_len=512)
    async with live(AsyncLLM(args)) as server:
        command = (
            sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json",
            "--phases", "coverage,fuzzing", "-n", "3", "--seed", "1", "--workers", "1", "--request-timeout", "20",
            # Well-formed values may be refused by name: what an engine does is no part of a schema.
            "--exclude-checks", "positive_data_acceptance", "--continue-on-failure", "--warnings", "off", "--no-color",
        )  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()[-8000:]
        assert server.app.service.models.num_active == 0
