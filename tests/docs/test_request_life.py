"""docs/request-life.md names the files that a request enters, in the order in which it enters them."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

import httpx
import pytest

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from tests.docs.pages import REPOSITORY, find_file, text
from tests.server.http_app import CHAT, until
from tests.server.live import Live, live

PAGE = Path("docs/request-life.md")
SOURCES = tuple(REPOSITORY.glob("pocketllm-*/src"))
IN_PYTHON = ("pocketllm/", "pocketllm_")


def walk_of(heading: str) -> list[str]:
    """The files of the table under a heading, in order, as ``room/file``."""
    section = re.split(r"\n## ", text(PAGE).split(f"\n## {heading}\n", 1)[1])[0]
    rows = re.findall(r"^\| `([\w/]+/)` \| ([^|]+) \|", section, re.MULTILINE)
    return [room + name for room, files in rows for name in re.findall(r"`([\w.]+)`", files)]


class Walk:
    """The product files that this thread enters, each once, from the first call into ``begin`` on."""

    def __init__(self, begin: str) -> None:
        self.files: list[str] = []
        self._begin = begin

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        path = Path(frame.f_code.co_filename)
        for source in SOURCES:
            if path.is_relative_to(source):
                name = path.relative_to(source).as_posix()
                if name not in self.files and (self.files or name == self._begin):
                    self.files.append(name)


@pytest.fixture
async def served(smollm2_path: Path) -> AsyncIterator[tuple[Live, httpx.AsyncClient]]:
    """The server of the walk, after a first request, which imports what only requests need."""
    args = EngineArgs(model=str(smollm2_path), backend="cpp", max_model_len=512)
    async with live(AsyncLLM(args)) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        await stream(client)
        yield server, client


async def stream(client: httpx.AsyncClient, **fields: Any) -> None:
    body = {"messages": [{"role": "user", "content": "Say hello."}], "stream": True, "max_tokens": 8, **fields}
    async with client.stream("POST", CHAT, json=body) as response:
        assert response.status_code == 200
        async for _ in response.aiter_lines():
            pass
    await asyncio.sleep(0.1)  # the server still writes its log line


@pytest.mark.parametrize(
    ("heading", "begin"),
    [("In", "pocketllm_server/transport/connections.py"), ("Out", "pocketllm/host/drain.py")],
)
async def test_a_streamed_chat_enters_the_files_in_order(
    heading: str, begin: str, served: tuple[Live, httpx.AsyncClient]
) -> None:
    with Walk(begin) as walk:
        await stream(served[1])
    named = [file for file in walk_of(heading) if file.startswith(IN_PYTHON)]
    assert [file for file in walk.files if file in named] == named


async def test_a_cancellation_enters_the_files_in_order(served: tuple[Live, httpx.AsyncClient]) -> None:
    server, client = served
    running = asyncio.create_task(stream(client, max_tokens=400, ignore_eos=True, request_id="walk"))
    await until(lambda: server.app.service.models.num_active)
    with Walk("pocketllm_server/routes/requests.py") as walk:
        assert (await client.delete("/v1/requests/walk")).status_code == 200
        await running
    named = [file for file in walk_of("One cancellation") if file.startswith(IN_PYTHON)]
    assert [file for file in walk.files if file in named] == named


@pytest.mark.parametrize("heading", ["In", "Out", "One cancellation"])
def test_every_file_of_a_walk_is_there(heading: str) -> None:
    walk = walk_of(heading)
    assert len(walk) > 10
    assert [name for name in walk if find_file(PAGE, name) is None] == []


def test_every_file_of_a_step_is_there() -> None:
    """Of both engines, each below the folder that heads its column."""
    section = re.split(r"\n## ", text(PAGE).split("\n## One step\n", 1)[1])[0]
    (roots, *rows) = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    folders = [REPOSITORY / root.strip().strip("`") for root in roots[1:]]
    missing = [
        folder / name
        for row in rows
        for folder, cell in zip(folders, row[1:], strict=True)
        for name in re.findall(r"`([\w./]+)`", cell)
        if not (folder / name).exists()
    ]
    assert len(rows) > 8
    assert missing == []
