"""The child process an engine may live in: ``python -m pocketllm.host.child_process COMMANDS EVENTS LIFELINE``.

One thread serves both pipes: commands in, step batches out. The engine has its own threads.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
import sys
import time
import traceback

from pocketllm.engine.call import GenerateCall
from pocketllm.errors import EngineError, PluginError, PocketLLMError
from pocketllm.hookspecs import Ticket
from pocketllm.host import frames
from pocketllm.host.extensions import EngineHooks
from pocketllm.types import CancelReason, Command, EngineStats, Finish, FinishReason, GenerationRequest, StepBatch

logger = logging.getLogger("pocketllm.engine")

# The parent asks for nothing while streams run, yet its view of the counters must not grow old.
STATS_INTERVAL_S = 0.25
# What a pipe holds. A read allocates its limit and gives back what it did not fill: with a megabyte, a process grew by
# a fifth over 20,000 requests, all of it holes in the C library's heap.
MAX_READ_BYTES = 1 << 16


def main(arguments: list[str]) -> int:
    commands_fd, events_fd, lifeline_fd = (int(argument) for argument in arguments)
    die_with_parent(lifeline_fd)
    # A terminal's Ctrl-C reaches the whole group; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reader = frames.FrameReader()
    first: list[bytes] = []
    while not first:
        data = os.read(commands_fd, MAX_READ_BYTES)
        if not data:
            return 0
        first = reader.feed(data)
    command = frames.to_child.decode(first.pop(0))
    if not isinstance(command, frames.Open):
        raise EngineError(f"The first frame was {type(command).__name__} instead of Open.")
    hooks = open_engine(command, events_fd)
    if hooks is None:
        return 1
    child = Child(hooks, commands_fd, events_fd, reader)
    for body in first:
        child.execute(frames.to_child.decode(body))
    child.serve()
    return 0


def die_with_parent(lifeline_fd: int) -> None:
    """End this process when the parent's end of the lifeline closes, however the parent died.

    The kernel sends SIGIO, whose default action ends the process even while a thread holds the GIL.
    """
    if not hasattr(fcntl, "F_SETOWN") or not hasattr(os, "O_ASYNC"):
        return  # elsewhere the end of file on the command pipe does it, between commands
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline_fd, fcntl.F_GETFL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    try:
        if os.read(lifeline_fd, 1) == b"":
            os._exit(1)  # the parent died before the signal was set up
    except BlockingIOError:
        pass  # alive: nothing to read


def open_engine(command: frames.Open, events_fd: int) -> EngineHooks | None:
    """Open the backend; the outcome goes to the parent as one frame. Returns None after a failure."""
    sys.path[:] = command.sys_path
    from pocketllm.checkpoint import open_checkpoint
    from pocketllm.plugins.registry import Registry

    def report(stage: str, fraction: float) -> None:
        frames.write_all(events_fd, frames.encode(frames.Progress(stage, fraction)))

    try:
        args = command.args
        checkpoint = open_checkpoint(
            args.checkpoint_dir,
            model_format=args.model_format,
            config_path=args.config_path,
            tokenizer_path=args.tokenizer_path,
        )
        engine = Registry(command.plugins).backend(args.backend).open(args, checkpoint, report)
        hooks = EngineHooks(engine, ())
        opened = frames.Opened(hooks.capabilities())
    except Exception as error:  # noqa: BLE001  # a runtime may raise anything while it loads; the parent shows it
        known = isinstance(error, PocketLLMError)
        failed = frames.OpenFailed(
            kind=type(error).__name__ if known else "EngineError",
            message=error.message if isinstance(error, PocketLLMError) else f"Loading failed: {error!r}",
            param=error.param if isinstance(error, PocketLLMError) else None,
            traceback=traceback.format_exc(),
        )
        frames.write_all(events_fd, frames.encode(failed))
        return None
    frames.write_all(events_fd, frames.encode(opened))
    return hooks


class Child:
    """Serves the pipes of one open engine until it is told to close or its parent is gone."""

    def __init__(self, hooks: EngineHooks, commands_fd: int, events_fd: int, reader: frames.FrameReader) -> None:
        self._hooks = hooks
        self._commands_fd = commands_fd
        self._events_fd = events_fd
        self._reader = reader
        self._closing = False
        self._last_stats: EngineStats | None = None
        self._stats_at = 0.0
        self._tickets: dict[int, Ticket] = {}

    def serve(self) -> None:
        source = self._hooks.engine.events
        poller = select.poll()
        poller.register(self._commands_fd, select.POLLIN)
        poller.register(source.fileno(), select.POLLIN)
        while not self._closing:
            ready = poller.poll(self._timeout_ms())
            batches = source.drain()
            for batch in batches:
                self._send(frames.Batch(batch))
            self._answer_tickets()
            stale = time.monotonic() - self._stats_at >= STATS_INTERVAL_S
            if stale or any(batch.finished for batch in batches):
                self._send_stats()
            if any(fd == self._commands_fd for fd, _ in ready):
                data = os.read(self._commands_fd, MAX_READ_BYTES)
                if not data:
                    os._exit(1)  # the parent is gone: nobody is left to close for
                for body in self._reader.feed(data):
                    self.execute(frames.to_child.decode(body))

    def execute(self, command: frames.ToChild) -> None:
        match command:
            case frames.Generate(request):
                self._generate(request)
            case frames.Cancel(handle, reason):
                self._hooks.cancel(handle, CancelReason(reason))
            case frames.Ping():
                self._send(frames.Pong())
                self._send_stats()
                self._send_heartbeat()
            case frames.Control(ticket, asked):
                self._control(ticket, asked)
            case frames.Close(deadline_s):
                self._close(deadline_s)

    def _generate(self, request: GenerationRequest) -> None:
        try:
            self._hooks.generate(GenerateCall(request))
        except PocketLLMError as error:
            # The hook in the parent has already said yes, so the refusal travels as the request's final event.
            kind = type(error).__name__
            finished = [
                Finish(choice.handle, FinishReason.ERROR, error.message, error_kind=kind, param=error.param)
                for choice in request.choices
            ]
            for choice in request.choices:
                self._hooks.cancel(choice.handle, CancelReason.PLUGIN)
            self._send(frames.Batch(StepBatch(finished=finished)))

    def _control(self, ticket: int, command: Command) -> None:
        try:
            pending = self._hooks.control(command)
        except Exception as error:  # noqa: BLE001  # the engine may raise anything; the caller waits for an answer
            self._send(frames.ControlDone(ticket=ticket, known=True, error=repr(error)))
            return
        if pending is None:
            self._send(frames.ControlDone(ticket=ticket, known=False))
        else:
            self._tickets[ticket] = pending

    def _answer_tickets(self) -> None:
        for ticket, pending in list(self._tickets.items()):
            if pending.done():
                del self._tickets[ticket]
                error = pending.exception()
                value = None if error else pending.result()
                self._send(frames.ControlDone(ticket, True, value, repr(error) if error else None))

    def _close(self, deadline_s: float) -> None:
        self._hooks.close(deadline_s)
        for batch in self._hooks.engine.events.drain():
            self._send(frames.Batch(batch))
        self._send_stats()
        self._send(frames.Closed())
        self._closing = True

    def _send_heartbeat(self) -> None:
        reason = self._hooks.heartbeat()
        if reason is not None:
            self._send(frames.Batch(StepBatch(fatal=reason)))

    def _send_stats(self) -> None:
        self._stats_at = time.monotonic()
        try:
            stats = self._hooks.stats()
        except PluginError as error:
            logger.error("%s", error.message)  # old counters are better than no engine
            return
        if stats != self._last_stats:
            self._last_stats = stats
            self._send(frames.Stats(stats))

    def _timeout_ms(self) -> int | None:
        # Idle means idle: with nothing pending and fresh counters, only a descriptor wakes this process.
        if self._tickets:
            return 20
        busy = self._last_stats is None or self._last_stats.num_running or self._last_stats.num_waiting
        return int(STATS_INTERVAL_S * 1000) if busy else None

    def _send(self, frame: frames.FromChild) -> None:
        try:
            frames.write_all(self._events_fd, frames.encode(frame))
        except BrokenPipeError:
            os._exit(1)  # the parent is gone


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
