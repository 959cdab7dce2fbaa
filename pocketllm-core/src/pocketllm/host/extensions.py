"""The plugin manager of one open engine: the engine, then every extension, and who is to blame for an exception."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import ModuleType

import msgspec

from pocketllm.engine.call import GenerateCall
from pocketllm.errors import PluginError, PocketLLMError
from pocketllm.hookspecs import PROJECT_NAME, Engine, Ticket, hookimpl
from pocketllm.plugins.hook_calls import new_relay
from pocketllm.types import CancelReason, Capabilities, Command, EngineStats

logger = logging.getLogger("pocketllm.engine")


class _Gate:
    """Stands right before the engine: what extensions add to a call must be complete here."""

    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> None:
        call.seal()


class EngineHooks:
    """Typed calls of the engine-scope hooks. Threads: any; the hooks themselves promise that."""

    def __init__(self, engine: Engine, extensions: Sequence[tuple[str, object]]) -> None:
        self.engine = engine
        self._modules = _owners(extensions)
        self._manager = new_relay("engine")
        # pluggy calls the last registered first: extensions, then the gate, then the engine.
        self._manager.register(engine, name="<engine>")
        self._manager.register(_Gate(), name="<gate>")
        for name, plugin in extensions:
            self._manager.register(plugin, name=name)

    def capabilities(self) -> Capabilities:
        """The engine's capabilities as narrowed by extensions.

        Raises:
            PluginError: an extension raised, or declared something that the engine does not.
        """
        own = self.engine.pocketllm_capabilities()  # type: ignore[attr-defined]  # hook methods are not part of Engine
        try:
            narrowed: Capabilities = self._manager.hook.pocketllm_capabilities()
        except Exception as error:  # any plugin may raise anything
            raise self._plugin_error(error, "pocketllm_capabilities") from error
        for field in msgspec.structs.fields(Capabilities):
            if field.type is bool and getattr(narrowed, field.name) and not getattr(own, field.name):
                raise PluginError(
                    f"An extension declared {field.name}, which the engine of backend {own.name!r} does not: a wrapper "
                    "of pocketllm_capabilities may only narrow."
                )
        return narrowed

    def generate(self, call: GenerateCall) -> None:
        """Hand the request over; on any exception the caller must cancel the handles, since it may be running.

        Raises:
            PocketLLMError: a refusal, as raised. PluginError: another exception, or nobody accepted.
        """
        try:
            accepted = self._manager.hook.pocketllm_generate(call=call)
        except PocketLLMError:
            raise
        except Exception as error:  # any plugin may raise anything
            raise self._plugin_error(error, "pocketllm_generate") from error
        if accepted is not True:
            raise PluginError(f"Nobody accepted the request: pocketllm_generate answered {accepted!r} instead of True.")

    def cancel(self, handle: int, reason: CancelReason) -> None:
        """Never raises: what an extension or the engine raises is logged."""
        self._broadcast("pocketllm_cancel", handle=handle, reason=reason.value)

    def stats(self) -> EngineStats:
        try:
            stats: EngineStats = self._manager.hook.pocketllm_stats()
        except Exception as error:  # any plugin may raise anything
            raise self._plugin_error(error, "pocketllm_stats") from error
        return stats

    def control(self, command: Command) -> Ticket | None:
        ticket: Ticket | None = self._manager.hook.pocketllm_control(command=command)
        return ticket

    @property
    def has_heartbeat(self) -> bool:
        """Whether the engine or an extension watches over it with ``pocketllm_heartbeat``."""
        return bool(self._manager.hook.pocketllm_heartbeat.get_hookimpls())

    def heartbeat(self) -> str | None:
        """Why the engine is lost. Never raises: what is raised is logged, since it says nothing of the engine."""
        try:
            reason: str | None = self._manager.hook.pocketllm_heartbeat()
        except Exception as error:  # noqa: BLE001  # any plugin may raise anything
            logger.error("%s", self._plugin_error(error, "pocketllm_heartbeat").message)
            return None
        return reason

    def close(self, deadline_s: float) -> None:
        """Never raises, as :meth:`cancel`."""
        self._broadcast("pocketllm_close", deadline_s=deadline_s)

    def _broadcast(self, hook: str, **arguments: object) -> None:
        try:
            getattr(self._manager.hook, hook)(**arguments)
        except Exception as error:  # noqa: BLE001  # any plugin may raise anything
            logger.error("%s", self._plugin_error(error, hook).message)
            if self.blame(error) is None:
                return  # the engine's own fault: it was reached
            # pluggy stops at the first that raises, and the engine comes last.
            try:
                getattr(self.engine, hook)(**arguments)
            except Exception as own:  # noqa: BLE001  # as above
                logger.error("%s", self._plugin_error(own, hook).message)

    def blame(self, error: BaseException) -> str | None:
        """The extension whose code is innermost in the traceback, or None when it is nobody's."""
        name = None
        traceback = error.__traceback__
        while traceback is not None:
            module = str(traceback.tb_frame.f_globals.get("__name__", ""))
            name = self._modules.get(module, self._modules.get(module.partition(".")[0], name))
            traceback = traceback.tb_next
        return name

    def _plugin_error(self, error: Exception, hook: str) -> PluginError:
        name = self.blame(error)
        who = f"Plugin {name!r}" if name else "The engine"
        return PluginError(f"{who} raised in {hook}: {error!r}.")


def _owners(extensions: Sequence[tuple[str, object]]) -> dict[str, str]:
    """Module and top-level package names of each extension, for blame; core's own package belongs to nobody."""
    owners: dict[str, str] = {}
    for name, plugin in extensions:
        module = _module_of(plugin)
        owners[module] = name
        package = module.partition(".")[0]
        if package != PROJECT_NAME:
            owners.setdefault(package, name)
    return owners


def _module_of(plugin: object) -> str:
    return plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
