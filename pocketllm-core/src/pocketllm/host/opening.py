"""From arguments to an open engine, and what becomes of one that is out of service."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pocketllm.errors import EngineError
from pocketllm.hookspecs import Engine
from pocketllm.host.extensions import EngineHooks
from pocketllm.host.pump import Pump
from pocketllm.host.state import HostLimits
from pocketllm.model_sources.resolve import resolve_model
from pocketllm.plugins.selection import Selection, select
from pocketllm.prompt.builder import PromptBuilder
from pocketllm.types import Capabilities, ModelSource

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs
    from pocketllm.plugins.registry import Registry

logger = logging.getLogger("pocketllm.engine")


@dataclasses.dataclass(frozen=True)
class FoundModel:
    """What the arguments lead to, known before a runtime is touched."""

    source: ModelSource
    checkpoint: Checkpoint
    selection: Selection


class OpenEngine:
    """One engine from open to close, with what belongs to its epoch."""

    def __init__(self, epoch: int, hooks: EngineHooks, capabilities: Capabilities, prompts: PromptBuilder) -> None:
        self.epoch = epoch
        self.hooks = hooks
        self.capabilities = capabilities
        self.prompts = prompts
        self.pump = Pump(hooks.blame)


class OpeningWatch(Protocol):
    """Who watches an opening. Called on the opening thread."""

    def found(self, model: FoundModel) -> None: ...

    def report(self, stage: str, fraction: float) -> None: ...

    def aborted(self) -> bool:
        """Nobody wants the engine any more; asked a few times a second while a child loads."""


class EngineOpener:
    """Opens a host's engines: the same arguments and plugins every time.

        resolve the model ──> read its headers ──> choose a backend ──> open the engine where it is placed
                                                                        └── build the prompts beside it

    Args:
        placement: "child", "thread", or "auto": a child process for engines that hold the GIL while they step.
    """

    def __init__(self, args: EngineArgs, registry: Registry, *, placement: str, limits: HostLimits) -> None:
        self._args = args
        self._registry = registry
        self._placement = placement
        self._limits = limits

    def open(self, epoch: int, watch: OpeningWatch) -> OpenEngine:
        """Minutes, on the calling thread. An engine that cannot be used after it has opened is closed again.

        Raises whatever stands in the way: PocketLLMErrors, or anything that a runtime raises.
        """
        model = self._find()
        watch.found(model)
        args, backend = model.selection.args, model.selection.backend
        with ThreadPoolExecutor(1, "pocketllm-prompts") as beside:
            # A runtime reads its weights in native code or in another process, which leaves time for the tokenizer.
            pending = beside.submit(self._build_prompts, model.checkpoint, args.backend_options.get("eos_token_id"))
            engine = self._open_in_place(args, model, watch)
        try:
            _check_events(engine, backend.name)
            hooks = EngineHooks(engine, self._registry.extensions())
            capabilities = hooks.capabilities()
            prompts = pending.result()
            if capabilities.supports_suffix and prompts.gap_tokens is None:
                capabilities = msgspec.structs.replace(capabilities, supports_suffix=False)
            if capabilities.supports_structured_outputs:
                from pocketllm.structured.token_table import begin_token_table

                begin_token_table(prompts.tokenizer)
            return OpenEngine(epoch, hooks, capabilities, prompts)
        except BaseException:
            discard(engine)
            raise

    def _find(self) -> FoundModel:
        from pocketllm.checkpoint import open_checkpoint

        args = self._args
        source = resolve_model(self._registry, args.checkpoint_dir)
        checkpoint = open_checkpoint(
            source.path,
            model_format=args.model_format,
            config_path=args.config_path,
            tokenizer_path=args.tokenizer_path,
        )
        options = {key: value for key, value in args.backend_options.items() if key != "checkpoint_dir"}
        args = msgspec.structs.replace(args, model=os.fspath(source.path), backend_options=options)
        return FoundModel(source, checkpoint, select(self._registry, args, checkpoint))

    def _open_in_place(self, args: EngineArgs, model: FoundModel, watch: OpeningWatch) -> Engine:
        backend = model.selection.backend
        if self._placement != "child" and not (self._placement == "auto" and backend.info.holds_gil):
            return backend.open(args, model.checkpoint, watch.report)
        from pocketllm.host.child_engine import ChildEngine

        return ChildEngine(
            args,
            self._registry.plugins,
            watch.report,
            load_timeout_s=self._limits.load_timeout_s,
            hang_timeout_s=self._limits.hang_timeout_s,
            control_commands=backend.info.control_commands,
            aborted=watch.aborted,
        )

    def _build_prompts(self, checkpoint: Checkpoint, eos_override: Any) -> PromptBuilder:
        # Imports come first: once the tokenizer is there, others want the interpreter's lock too.
        importlib.import_module("pocketllm.text.sandbox")
        return PromptBuilder(checkpoint, eos_override, self._registry.syntaxes())


def _check_events(engine: Engine, backend_name: str) -> None:
    if not hasattr(getattr(engine, "events", None), "drain"):
        raise EngineError(
            f"Backend {backend_name!r} opened an engine without an event source: give it an attribute events, such as "
            "a pocketllm.engine.outbox.Outbox."
        )


def retire(opened: OpenEngine) -> None:
    """Close an engine that is out of service and ignore its late events."""
    opened.hooks.close(0.5)
    close_events(opened.hooks.engine)


def discard(engine: Engine) -> None:
    """Close an engine that opened but cannot be used."""
    try:
        engine.pocketllm_close(deadline_s=1.0)  # type: ignore[attr-defined]  # hook methods are not part of Engine
        close_events(engine)
    except Exception:  # the reason for discarding it is what the person has to see
        logger.exception("closing an unusable engine failed")


def close_events(engine: Engine) -> None:
    close = getattr(engine.events, "close", None)
    if close is not None:
        close()
