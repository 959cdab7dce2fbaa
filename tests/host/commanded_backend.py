"""The echo engine with what it lacks for these tests: commands, and a heartbeat that a command turns bad."""

from __future__ import annotations

from concurrent.futures import Future

from pocketllm.checkpoint import Checkpoint
from pocketllm.engine_args import EngineArgs
from pocketllm.hookspecs import LoadReport, hookimpl
from pocketllm.plugins.discovery import BACKENDS_GROUP, Plugin
from pocketllm.plugins.registry import Registry
from pocketllm.types import BackendInfo, Command, Offer
from pocketllm_echo.engine import EchoEngine


class CommandedEngine(EchoEngine):
    _lost: str | None = None

    @hookimpl
    def pocketllm_control(self, command: Command) -> Future[object] | None:
        if command.name not in ("answer", "lose"):
            return None
        if command.name == "lose":
            self._lost = "The device is gone."
        ticket: Future[object] = Future()
        ticket.set_result(command.arguments)
        return ticket

    @hookimpl
    def pocketllm_heartbeat(self) -> str | None:
        return self._lost


class CommandedBackend:
    @hookimpl
    def pocketllm_backend(self) -> BackendInfo:
        return BackendInfo(name="commanded", control_commands=("answer", "lose", "unwritten"))

    @hookimpl
    def pocketllm_probe(self, checkpoint: Checkpoint, args: EngineArgs) -> Offer:
        return Offer(rank=0, reason="test data")

    @hookimpl
    def pocketllm_open(self, args: EngineArgs, checkpoint: Checkpoint, report: LoadReport) -> CommandedEngine:
        return CommandedEngine(args, checkpoint)


backend = CommandedBackend()


def registry() -> Registry:
    """One that a child process sees, too: the plugin is named and not given."""
    return Registry([Plugin(name="commanded", group=BACKENDS_GROUP, value=f"{__name__}:backend")])
