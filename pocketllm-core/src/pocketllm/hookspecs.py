"""The hook contract. `docs/hooks.md` is checked against this module.

Host scope hooks are asked one plugin at a time; a raise marks that plugin broken. Engine scope hooks live in one
``pluggy.PluginManager`` per open engine, which holds the engine and then every extension; wrappers are allowed there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pocketllm.hook_markers import PROJECT_NAME as PROJECT_NAME
from pocketllm.hook_markers import hookimpl as hookimpl
from pocketllm.hook_markers import hookspec
from pocketllm.types import (
    BackendInfo,
    Capabilities,
    Command,
    CommandPart,
    EngineStats,
    ModelSource,
    Offer,
    Refusal,
    StepBatch,
    SyntaxPart,
)

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine.call import GenerateCall
    from pocketllm.engine_args import EngineArgs

LoadReport = Callable[[str, float], None]
"""``report(stage, fraction)``: progress of an open, 0.0 to 1.0; callable from the opening thread at any rate."""


class EventSource(Protocol):
    """Where an engine's batches wait for core. See :class:`pocketllm.engine.outbox.Outbox` for the ready-made one."""

    def fileno(self) -> int:
        """A descriptor that is readable while batches wait."""

    def drain(self) -> list[StepBatch]:
        """All waiting batches in order, [] when none waits, without blocking; called from one thread at a time."""


class Engine(Protocol):
    """An open engine: an object whose methods implement the engine-scope hooks, and its event source."""

    @property
    def events(self) -> EventSource: ...


class Ticket(Protocol):
    """The pending answer of a :func:`EngineScope.pocketllm_control` command; a ``concurrent.futures.Future`` fits."""

    def done(self) -> bool: ...

    def exception(self, timeout: float | None = None) -> BaseException | None: ...

    def result(self, timeout: float | None = None) -> object: ...


class HostScope:
    """Asked of one plugin at a time, without wrappers."""

    @hookspec(firstresult=True)
    def pocketllm_backend(self) -> BackendInfo:  # type: ignore[empty-body]  # a spec has no body
        """The backend's card. Cheap, imports no runtime."""

    @hookspec(firstresult=True)
    def pocketllm_probe(self, checkpoint: Checkpoint, args: EngineArgs) -> Offer | Refusal:  # type: ignore[empty-body]
        """Can this backend serve the checkpoint with these arguments? Reads headers only, in under 100 ms."""

    @hookspec(firstresult=True)
    def pocketllm_open(self, args: EngineArgs, checkpoint: Checkpoint, report: LoadReport) -> Engine:  # type: ignore[empty-body]
        """Load the checkpoint and start the engine; the only place where a runtime is imported.

        Runs on the host's loader thread or in its child process. May raise any PocketLLMError; another exception is
        reported as a failed load with its text.
        """

    @hookspec(firstresult=True)
    def pocketllm_commands(self) -> list[CommandPart]:  # type: ignore[empty-body]
        """Subcommands of the ``pocketllm`` program, as data: nothing is imported for ``--help``."""

    @hookspec(firstresult=True)
    def pocketllm_syntaxes(self) -> list[SyntaxPart]:  # type: ignore[empty-body]
        """Tool-call syntaxes this plugin can read, as data; they are asked before core's own."""

    @hookspec(firstresult=True)
    def pocketllm_resolve_model(self, name: str) -> ModelSource | None:
        """Where the model called ``name`` lies on this machine, or None; the first plugin that answers wins."""


class EngineScope:
    """One manager per open engine: the engine, then every extension."""

    @hookspec(firstresult=True)
    def pocketllm_capabilities(self) -> Capabilities:  # type: ignore[empty-body]
        """What the engine does; constant after open. A wrapper may only narrow it."""

    @hookspec(firstresult=True)
    def pocketllm_generate(self, call: GenerateCall) -> bool | None:
        """Accept ``call.request`` (return True) by queueing it; about 1 ms, any thread.

        Raise UnsupportedFeatureError(param=...) to refuse; then no event may follow. After True, each handle gets its
        events and exactly one Finish.
        """

    @hookspec
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        """End the sequence at the next step boundary with Finish "cancelled". Any thread, idempotent; an unknown
        handle is fine."""

    @hookspec(firstresult=True)
    def pocketllm_stats(self) -> EngineStats:  # type: ignore[empty-body]
        """Counters now; never waits for a step."""

    @hookspec(firstresult=True)
    def pocketllm_control(self, command: Command) -> Ticket | None:
        """Optional: start an operation on the whole engine; None when the command is unknown.

        A backend names the commands that its engine knows in ``BackendInfo.control_commands``.
        """

    @hookspec(firstresult=True)
    def pocketllm_heartbeat(self) -> str | None:
        """Optional: why the engine is lost, as a full sentence, or None while it is well.

        Asked every few seconds from the thread that drains the events, so it never waits. After a reason core ends the
        engine's requests and opens another one. Since contract 1.1.
        """

    @hookspec
    def pocketllm_close(self, deadline_s: float) -> None:
        """Stop and free everything within about ``deadline_s``; afterwards every accepted handle has had its Finish
        (posted before this returns)."""
