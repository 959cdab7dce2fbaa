"""The server's place in the ``pocketllm`` program. Imports nothing of the server, so that help stays quick."""

from __future__ import annotations

from pocketllm.hookspecs import hookimpl
from pocketllm.types import CommandPart


@hookimpl
def pocketllm_commands() -> list[CommandPart]:
    return [CommandPart(name="serve", target="pocketllm_server.cli:serve", help="Serve a model over HTTP.")]
