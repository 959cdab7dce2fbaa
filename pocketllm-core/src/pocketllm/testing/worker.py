"""The process that holds the engine under test: ``python -m pocketllm.testing.worker SOCKET``.

The kit kills it when a case passes its deadline. It ends when the kit is gone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import socket
import sys
import threading
import traceback

from pocketllm.errors import ConfigurationError
from pocketllm.testing import wire
from pocketllm.testing.case import Case, all_cases
from pocketllm.testing.rig import Rig, open_model
from pocketllm.testing.rules import RuleBroken, Violation
from pocketllm.testing.settings import KitSettings
from pocketllm.testing.target import registry_of

SWITCH_INTERVAL_S = 0.001
"""A Python engine in this process must not keep the kit from acting on the very token it waits for."""


def main(arguments: list[str]) -> int:
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    channel = socket.socket(fileno=int(arguments[0]))
    messages: queue.SimpleQueue[wire.Asked] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, messages), name="kit-reader", daemon=True).start()
    first = messages.get()
    if not isinstance(first, wire.Open):
        raise ConfigurationError("The kit's first message must open an engine.")
    try:
        judge = Judge(first.settings)
    except BaseException as exc:  # noqa: BLE001  # a foreign open may raise anything, SystemExit included
        opening = Violation("L1", f"the engine could not be opened: {type(exc).__name__}: {exc}")
        channel.sendall(wire.encode(wire.Outcome([opening], traceback.format_exc())))
        return 1
    channel.sendall(wire.encode(wire.Opened(judge.rig.capabilities)))
    while isinstance(message := messages.get(), wire.Run):
        channel.sendall(wire.encode(judge.run(all_cases()[message.case])))
    return 0


def _read(channel: socket.socket, messages: queue.SimpleQueue[wire.Asked]) -> None:
    for line in channel.makefile("rb"):
        messages.put(wire.asked.decode(line))
    os._exit(0)  # the kit is gone, or has no more cases: whatever still runs here is of no use


class Judge:
    """Runs cases on one open engine, and opens the engine."""

    def __init__(self, settings: KitSettings) -> None:
        self.rig = Rig(settings, registry_of(settings), open_model(settings))
        # What an engine makes at its first work (threads, pools, caches) is its own and no leak.
        with contextlib.suppress(RuleBroken):  # a fault that the first case meets again, and can name
            for sent in [self.rig.send(self.rig.request(self.rig.prompt(index), max_tokens=4)) for index in range(2)]:
                sent.wait()
        self.rig.forget()
        self.idle = self.rig.settled_stats()

    def run(self, case: Case) -> wire.Outcome:
        """Run one case and judge its streams and what it left behind."""
        outcome = self._run_once(case)
        grown = {violation.rule for violation in outcome.violations}
        if grown and grown <= {"R3", "R4"}:
            # Made for the first case of its kind, or leaked by each? The second run tells.
            outcome = self._run_once(case)
        return outcome

    def _run_once(self, case: Case) -> wire.Outcome:
        rig = self.rig
        baseline = rig.held()
        found: list[Violation] = []
        text = ""
        try:
            case.run(rig)
        except RuleBroken as failure:
            found += failure.violations
        except Exception as exc:  # noqa: BLE001  # the engine's hooks may raise anything: that breaks the case's rule
            found.append(Violation(case.rule, f"{type(exc).__name__}: {exc}"))
            text = traceback.format_exc()
        found += rig.check_streams()
        found += rig.check_held(baseline, self.idle)
        rig.forget()
        unique = {(violation.rule, violation.message): violation for violation in found}
        return wire.Outcome(list(unique.values()), text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
