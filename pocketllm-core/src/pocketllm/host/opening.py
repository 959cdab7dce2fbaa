"""From arguments to an open engine, and what becomes of one that is out of service."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from pocketllm.engine.extensions import EngineHooks
from pocketllm.errors import EngineError
from pocketllm.hookspecs import Engine, LoadReport
from pocketllm.host.pump import Pump
from pocketllm.host.state import HostLimits
from pocketllm.model_sources.resolve import resolve_model
from pocketllm.plugins.selection import select
from pocketllm.prompt.builder import PromptBuilder
from pocketllm.types import Capabilities, ModelSource

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs
    from pocketllm.plugins.registry import Registry
    from pocketllm.plugins.selection import Selection

logger = logging.getLogger("pocketllm.engine")


class OpenEngine:
    """One engine from open to close, with what belongs to its epoch."""

    def __init__(self, epoch: int, hooks: EngineHooks, capabilities: Capabilities, prompts: PromptBuilder) -> None:
        self.epoch = epoch
        self.hooks = hooks
        self.capabilities = capabilities
        self.prompts = prompts
        self.pump = Pump(hooks.blame)


def open_engine(
    args: EngineArgs,
    registry: Registry,
    *,
    placement: str,
    limits: HostLimits,
    epoch: int,
    selected: Callable[[Selection, Checkpoint, ModelSource], None],
    report: LoadReport,
    aborted: Callable[[], bool],
) -> OpenEngine:
    """Resolve the model, choose the backend, open its engine where it is placed, and ask what it can do.

    Minutes, on the calling thread. ``selected`` is called before the runtime is touched; an engine that cannot be used
    after it has opened is closed again.

    Raises whatever stands in the way: PocketLLMErrors, or anything that a runtime raises.
    """
    from pocketllm.checkpoint import open_checkpoint
    from pocketllm.plugins.backend_options import checked_options

    source = resolve_model(registry, args.checkpoint_dir)
    path = source.path
    checkpoint = open_checkpoint(
        path,
        model_format=args.model_format,
        config_path=args.config_path,
        tokenizer_path=args.tokenizer_path,
    )
    options = {key: value for key, value in args.backend_options.items() if key != "checkpoint_dir"}
    args = msgspec.structs.replace(args, model=os.fspath(path), backend_options=options)
    selection = select(registry, args, checkpoint)
    selected(selection, checkpoint, source)
    backend = selection.backend
    options = checked_options(backend.info, args)
    args = msgspec.structs.replace(args, backend=backend.name, backend_options=options, resolved_options={})
    with ThreadPoolExecutor(1, "pocketllm-prompts") as beside:
        # A runtime reads its weights in native code or in another process, which leaves time for the tokenizer.
        pending = beside.submit(_build_prompts, checkpoint, options.get("eos_token_id"), registry)
        if placement == "child" or (placement == "auto" and backend.info.holds_gil):
            from pocketllm.engine.child_engine import ChildEngine

            engine: Engine = ChildEngine(
                args,
                registry.plugins,
                report,
                load_timeout_s=limits.load_timeout_s,
                hang_timeout_s=limits.hang_timeout_s,
                aborted=aborted,
            )
        else:
            engine = backend.open(args, checkpoint, report)
    try:
        if not hasattr(getattr(engine, "events", None), "drain"):
            raise EngineError(
                f"Backend {backend.name!r} opened an engine without an event source: give it an attribute events, "
                "such as a pocketllm.engine.outbox.Outbox."
            )
        hooks = EngineHooks(engine, registry.extensions())
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


def _build_prompts(checkpoint: Checkpoint, eos_override: object, registry: Registry) -> PromptBuilder:
    # Imports come first: once the tokenizer is there, others want the interpreter's lock too.
    importlib.import_module("pocketllm.text.sandbox")
    return PromptBuilder(checkpoint, eos_override, registry.syntaxes())


def retire(opened: OpenEngine) -> None:
    """Close an engine that is out of service; its late events are of no interest."""
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
