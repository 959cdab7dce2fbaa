"""The bench an engine is put on: opens it, sends requests, records what comes back, and what it holds."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pluggy

from pocketllm.checkpoint import Checkpoint, open_checkpoint
from pocketllm.engine.call import GenerateCall
from pocketllm.engine_args import EngineArgs
from pocketllm.hookspecs import PROJECT_NAME, Engine, EngineScope
from pocketllm.plugins.registry import Registry
from pocketllm.sampling_params import SamplingParams
from pocketllm.testing.recorder import Recorder
from pocketllm.testing.rules import RuleBroken, Violation, broken
from pocketllm.testing.settings import MAX_BATCH_SIZE, MAX_MODEL_LEN, KitSettings
from pocketllm.testing.stream_rules import Row, check_stream, events_of
from pocketllm.types import CancelReason, Capabilities, Choice, Constraint, EngineStats, Finish, GenerationRequest

LOAD_TIMEOUT_S = 600.0
HANG_TIMEOUT_S = 60.0
CLOSE_DEADLINE_S = 10.0
SETTLE_S = 1.5
"""How long an engine may take to give back what a finished request held (a child's counters are a little old)."""
LONG = 10**6

_handles = itertools.count(1)
_NOUNS = ("apples", "rivers", "books", "clocks", "birds", "letters", "stones", "trains", "lamps", "coats", "keys")


class Sent:
    """A request that the engine has accepted, and its recording."""

    def __init__(self, rig: Rig, request: GenerationRequest, first_batch: int) -> None:
        self.rig, self.request, self.first_batch = rig, request, first_batch
        self.healthy = True
        self.handles = [choice.handle for choice in request.choices]
        self.handle = self.handles[0]

    def wait(self) -> Sent:
        """Wait for the final event of every choice. Raises RuleBroken (S1) when one never comes."""
        recorder = self.rig.recorder
        if not recorder.wait(lambda: self.ended, self.rig.settings.stream_timeout_s):
            cause = f": {recorder.failure or recorder.fatal}" if recorder.failure or recorder.fatal else ""
            rows = sum(recorder.num_rows(handle) for handle in self.handles)
            raise broken("S1", f"no final event within {self.rig.settings.stream_timeout_s:g} s ({rows} rows){cause}")
        return self

    def wait_rows(self, num_rows: int) -> Sent:
        """Wait until the first choice has so many rows or has ended."""
        recorder = self.rig.recorder
        ready = recorder.wait(
            lambda: recorder.num_rows(self.handle) >= num_rows or recorder.finish(self.handle) is not None,
            self.rig.settings.stream_timeout_s,
        )
        if not ready:
            raise broken("S1", f"neither {num_rows} rows nor a final event within the time for a stream")
        return self

    @property
    def ended(self) -> bool:
        return all(self.rig.recorder.finish(handle) is not None for handle in self.handles)

    def finish(self, index: int = 0) -> Finish:
        finish = self.rig.recorder.finish(self.handles[index])
        if finish is None:
            raise broken("S1", "no final event")
        return finish

    @property
    def reason(self) -> str:
        return self.finish().reason

    def events(self, index: int = 0) -> list[Any]:
        return list(events_of(self.rig.recorder.batches(self.first_batch), self.handles[index]))

    def rows(self, index: int = 0) -> list[Row]:
        return [event for event in self.events(index) if isinstance(event, Row)]

    def tokens(self, index: int = 0) -> list[int]:
        """Every generated id, a stop id included."""
        return [row.token for row in self.rows(index) if row.has_token]

    def violations(self) -> list[Violation]:
        return check_stream(
            self.rig.recorder.batches(self.first_batch),
            self.request,
            vocab_size=self.rig.capabilities.vocab_size,
            healthy=self.healthy,
        )


class Rig:
    """One open engine and everything a case needs to judge it."""

    def __init__(self, settings: KitSettings, registry: Registry, checkpoint: Checkpoint) -> None:
        self.settings, self.registry, self.checkpoint = settings, registry, checkpoint
        self.tokenizer = checkpoint.tokenizer()
        self.before = held_by_process()
        self.engine = self._open()
        manager = pluggy.PluginManager(PROJECT_NAME)
        manager.add_hookspecs(EngineScope)
        manager.register(self.engine)
        self.hooks = manager.hook
        self.capabilities: Capabilities = self.hooks.pocketllm_capabilities()
        self.recorder = Recorder(self.engine.events)
        self.sent: list[Sent] = []
        self.closed = False
        self._forgotten: set[int] = set()

    # ------------------------------------------------------------------------------------------------ open, close

    def _open(self) -> Engine:
        backend = self.registry.backend(self.settings.backend)
        args = backend.checked(engine_args(self.settings))
        if self.settings.placement == "child":
            from pocketllm.host.child_engine import ChildEngine

            return ChildEngine(
                args,
                self.registry.plugins,
                _no_report,
                load_timeout_s=LOAD_TIMEOUT_S,
                hang_timeout_s=HANG_TIMEOUT_S,
                control_commands=backend.info.control_commands,
            )
        return backend.open(args, self.checkpoint, _no_report)

    def another(self) -> Rig:
        """A second engine with the same arguments; the case closes it."""
        return Rig(self.settings, self.registry, self.checkpoint)

    def close(self) -> None:
        """Close the engine and free its event source; afterwards the recording is complete."""
        if not self.closed:
            self.closed = True
            self.hooks.pocketllm_close(deadline_s=CLOSE_DEADLINE_S)
            self.recorder.stop()
            self.free_events()

    def free_events(self) -> None:
        close = getattr(self.engine.events, "close", None)
        if close is not None:
            close()

    # --------------------------------------------------------------------------------------------------- requests

    @property
    def deterministic(self) -> bool:
        """True when a request can be greedy: sampling is per request, or fixed at temperature 0."""
        return self.capabilities.per_request_sampling or self.capabilities.temperature == 0.0

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.capabilities.eos_token_ids or self.checkpoint.eos_token_ids(None)[0]

    def prompt(self, index: int = 0, num_tokens: int = 16) -> tuple[int, ...]:
        """A prompt of exactly so many ids; prompts of different indices differ from the first word on."""
        noun = _NOUNS[index % len(_NOUNS)]
        text = f"{noun.title()} {index * 37 + 11}: on day {index} they counted {index * 13 + 5} {noun} and wrote it. "
        ids: list[int] = []
        while len(ids) < num_tokens:
            ids += self.tokenizer.encode(text, add_bos=False, parse_special=False)
        return tuple(ids[:num_tokens])

    def request(
        self,
        prompt: Sequence[int] | None = None,
        *,
        max_tokens: int = 8,
        stop_ids: Sequence[int] | None = None,
        seeds: Sequence[int] = (0,),
        constraint: Constraint | None = None,
        **params: Any,
    ) -> GenerationRequest:
        """A request as core would hand it over: handles, budget, stop ids, and the fixed sampling where it is fixed."""
        fixed = self.capabilities
        values: dict[str, Any] = {"max_tokens": max_tokens, "n": len(seeds), **params}
        if not fixed.per_request_sampling:
            values = {"temperature": fixed.temperature, "top_p": fixed.top_p, "seed": fixed.seed, **values}
        return GenerationRequest(
            prompt_tokens=tuple(self.prompt() if prompt is None else prompt),
            sampling_params=SamplingParams(**values),
            choices=tuple(Choice(handle=next(_handles), seed=seed) for seed in seeds),
            stop_token_ids=tuple(self.eos_ids if stop_ids is None else stop_ids),
            constraint=constraint,
        )

    def long_request(self, index: int = 0, seeds: Sequence[int] = (0,)) -> GenerationRequest:
        """A request that lasts as long as this engine can be made to."""
        limit = self.capabilities.max_model_len
        if self.capabilities.supports_ignore_eos:
            prompt = self.prompt(index, min(16, limit // 4))
            budget = limit - len(prompt)
            return self.request(prompt, max_tokens=budget, stop_ids=(), seeds=seeds, ignore_eos=True)
        # An engine that plays its prompt back lasts as long as the prompt does.
        prompt = self.prompt(index, limit // 2 - 1)
        return self.request(prompt, max_tokens=limit - len(prompt), seeds=seeds)

    def send(self, request: GenerationRequest, before: Callable[[Sent], None] | None = None) -> Sent:
        """Hand a request to the engine; ``before`` is called with its record first (to set an action on a row)."""
        sent = Sent(self, request, self.recorder.num_batches)
        if before is not None:
            before(sent)
        call = GenerateCall(request)
        accepted = self.hooks.pocketllm_generate(call=call)
        if accepted is not True:
            raise broken("H1", f"pocketllm_generate answered {accepted!r} instead of True")
        call.seal()
        self.sent.append(sent)
        return sent

    def run(self, request: GenerationRequest) -> Sent:
        """Send a request and wait for its end."""
        return self.send(request).wait()

    def ask(self, prompt: Sequence[int] | None = None, **values: Any) -> list[int]:
        """The ids that a request of its own gets (see :meth:`request`)."""
        return self.run(self.request(prompt, **values)).tokens()

    def cancel(self, handle: int, reason: CancelReason = CancelReason.CLIENT) -> int:
        """Cancel a sequence; the number of batches that had been posted by then."""
        self.hooks.pocketllm_cancel(handle=handle, reason=reason.value)
        return self.recorder.drain_now()

    def stats(self) -> EngineStats:
        stats: EngineStats = self.hooks.pocketllm_stats()
        return stats

    def settled_stats(self) -> EngineStats:
        """The counters once they have stopped moving: those of a child are up to a quarter of a second old."""
        pause_s = 0.4 if self.settings.placement == "child" else 0.02
        before, give_up_at = self.stats(), time.monotonic() + SETTLE_S
        while True:
            time.sleep(pause_s)
            now = self.stats()
            if now == before or time.monotonic() > give_up_at:
                return now
            before = now

    # ------------------------------------------------------------------------------------------------- after a case

    def check_streams(self) -> list[Violation]:
        """Judge every stream of the case, once the engine has had a step to post what it should not."""
        found: list[Violation] = []
        try:
            if not self.closed:
                self._flush_out()
        except RuleBroken as failure:
            found += failure.violations
        strangers = {handle for batch in self.recorder.batches() for handle in batch.handles} - self._accepted()
        if strangers:
            found.append(Violation("S7", f"rows of handles that were never accepted: {sorted(strangers)[:5]}"))
        for sent in self.sent:
            found += sent.violations()
        return found

    def _flush_out(self) -> None:
        """End what the case left behind; one more request gives the engine steps in which it may post too much."""
        for sent in self.sent:
            for handle in sent.handles:
                if self.recorder.finish(handle) is None:
                    self.cancel(handle)
            sent.wait()
        self.run(self.request(max_tokens=2))

    def _accepted(self) -> set[int]:
        return {handle for sent in self.sent for handle in sent.handles} | self._forgotten

    def forget(self) -> None:
        """Start the next case: its streams are judged alone."""
        self._forgotten = self._accepted()
        self.sent = []

    def held(self) -> Held:
        """What this process holds now, and the descriptors of the engine's own process where it has one."""
        process = getattr(self.engine, "process", None)
        return held_by_process(process.pid if process is not None and process.poll() is None else None)

    def check_held(self, baseline: Held, idle: EngineStats) -> list[Violation]:
        """Compare what is held now with what was held before the case."""
        give_up_at = time.monotonic() + SETTLE_S
        found = self._differences(baseline, idle)
        while found and time.monotonic() < give_up_at:
            time.sleep(0.02)
            found = self._differences(baseline, idle)
        return found

    def _differences(self, baseline: Held, idle: EngineStats) -> list[Violation]:
        now = self.stats()
        found = compare_held(baseline, self.held())
        if now.num_running or now.num_waiting:
            found.append(Violation("R1", f"{now.num_running} still run and {now.num_waiting} wait after the case"))
        if now.num_free_slots != idle.num_free_slots:
            found.append(Violation("R1", f"{now.num_free_slots} places are free, {idle.num_free_slots} were before"))
        if now.num_free_blocks != idle.num_free_blocks:
            found.append(Violation("R2", f"{now.num_free_blocks} blocks are free, {idle.num_free_blocks} were before"))
        return found


class Held(msgspec.Struct, frozen=True):
    """What the process holds: names of Python threads, and open descriptors (number to target)."""

    threads: list[str]
    descriptors: dict[int, str]


def held_by_process(child_pid: int | None = None) -> Held:
    descriptors = _descriptors("self")
    if child_pid is not None:
        descriptors |= {-1 - fd: f"{target} (child)" for fd, target in _descriptors(str(child_pid)).items()}
    return Held(sorted(thread.name for thread in threading.enumerate()), descriptors)


def _descriptors(process: str) -> dict[int, str]:
    found: dict[int, str] = {}
    folder = f"/proc/{process}/fd"
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        try:
            found[int(name)] = os.readlink(f"{folder}/{name}")
        except OSError:
            continue  # the listing's own descriptor, closed by now
    return found


def compare_held(before: Held, now: Held) -> list[Violation]:
    found = []
    if len(now.threads) > len(before.threads):
        extra = list(now.threads)
        for name in before.threads:
            if name in extra:
                extra.remove(name)
        found.append(Violation("R3", f"{len(now.threads)} threads instead of {len(before.threads)}; new: {extra}"))
    if len(now.descriptors) > len(before.descriptors):
        new = [f"{fd} {target}" for fd, target in now.descriptors.items() if before.descriptors.get(fd) != target]
        counts = f"{len(now.descriptors)} open descriptors instead of {len(before.descriptors)}"
        found.append(Violation("R4", f"{counts}; new: {', '.join(new)}"))
    return found


def engine_args(settings: KitSettings) -> EngineArgs:
    """The arguments of the engine under test; ``settings.engine_args`` win over the kit's own."""
    values: dict[str, Any] = {
        "model": settings.model,
        "max_model_len": MAX_MODEL_LEN,
        "max_batch_size": MAX_BATCH_SIZE,
        **settings.engine_args,
        "backend": settings.backend,
        "backend_options": settings.backend_options,
    }
    return EngineArgs(**values)


def open_model(settings: KitSettings) -> Checkpoint:
    args = engine_args(settings)
    return open_checkpoint(
        args.checkpoint_dir,
        model_format=args.model_format,
        config_path=args.config_path,
        tokenizer_path=args.tokenizer_path,
    )


def _no_report(stage: str, fraction: float) -> None:
    """The kit shows no progress."""
