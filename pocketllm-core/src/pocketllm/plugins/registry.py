"""The typed front of discovery: backends, extensions, commands and model names of one set of plugins.

Metadata is read at once; a plugin's module is imported when something of it is asked for. Every question goes to one
plugin at a time, so that a plugin which raises is marked broken and the others still answer.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from pocketllm.errors import BackendUnavailableError, PluginError, PocketLLMError
from pocketllm.plugins.backend_options import checked_options, known_names
from pocketllm.plugins.discovery import (
    BACKENDS_GROUP,
    PLUGINS_GROUP,
    SELECTION_VARIABLE,
    VALUE_PATTERN,
    Plugin,
    PluginState,
    discover,
    selected_names,
)
from pocketllm.plugins.hook_calls import ENGINE_HOOKS
from pocketllm.plugins.loading import LoadedPlugin, broken, import_target, load_plugin
from pocketllm.types import BackendInfo, CommandPart, ModelSource, Offer, Refusal, SyntaxPart

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs
    from pocketllm.hookspecs import Engine, LoadReport
    from pocketllm.text.tool_calls.base import ToolCallSyntax

OWN_BACKENDS = ("cpp", "torch")
"""Backends that this project publishes as ``pocketllm-NAME``."""
_logger = logging.getLogger(__name__)
T = TypeVar("T")


class BackendPlugin:
    """A backend that is loaded and in order. Threads: any."""

    def __init__(self, registry: Registry, loaded: LoadedPlugin) -> None:
        if loaded.relay is None or loaded.plugin.info is None:
            raise PluginError(f"Backend {loaded.plugin.name!r} is not loaded: ask the registry for it by name.")
        self._registry = registry
        self._relay = loaded.relay
        self.plugin = loaded.plugin
        self.name: str = loaded.plugin.name
        self.info: BackendInfo = loaded.plugin.info

    def checked(self, args: EngineArgs) -> EngineArgs:
        """``args`` as this backend's hooks get them: the given options checked against its card, the model's place in
        ``model``. Made once for each opening; :meth:`probe` and :meth:`open` take what it returns.

        Raises:
            ConfigurationError: an option that the card does not declare, or a value of another type.
        """
        options = checked_options(self.info, args)
        return msgspec.structs.replace(args, model=args.checkpoint_dir, backend_options=options, resolved_options={})

    def probe(self, checkpoint: Checkpoint, args: EngineArgs) -> Offer | Refusal:
        """The backend's own answer, from headers alone. ``args`` are :meth:`checked`.

        Raises:
            PluginError: it raised or answered something else; it is broken from now on.
        """
        try:
            answer = self._relay.hook.pocketllm_probe(checkpoint=checkpoint, args=args)
            if not isinstance(answer, Offer | Refusal):
                raise PluginError(f"pocketllm_probe returned {type(answer).__name__}, not an Offer or a Refusal.")
            if isinstance(answer, Offer) and not 0 <= answer.rank <= 100:
                raise PluginError(f"pocketllm_probe offers the rank {answer.rank!r}, which is outside 0 to 100.")
        except PluginError as error:
            raise self._registry.mark_broken(self.plugin, error) from error
        except PocketLLMError:
            raise  # a plain word about the checkpoint or the arguments, not a fault
        except (Exception, SystemExit) as error:  # a foreign probe may raise anything; it is marked, not hidden
            raise self._registry.mark_broken(self.plugin, error) from error
        return answer

    def open(self, args: EngineArgs, checkpoint: Checkpoint, report: LoadReport) -> Engine:
        """Load the checkpoint and start the engine; minutes, on the calling thread. ``args`` are :meth:`checked`.

        Raises whatever the backend raises.
        """
        engine = self._relay.hook.pocketllm_open(args=args, checkpoint=checkpoint, report=report)
        if engine is None:
            raise PluginError(f"Backend {self.name!r} opened nothing: pocketllm_open returned None.")
        return cast("Engine", engine)

    def __repr__(self) -> str:
        return f"BackendPlugin({self.name})"


class Registry:
    """One set of plugins. Threads: any; plugins load once, under a lock.

    Args:
        plugins: what :func:`pocketllm.plugins.discovery.discover` found; None: discover now.
        environ: where ``POCKETLLM_*`` variables are read; None: the process's.
        targets: objects to use instead of importing them, by plugin name (for tests).
    """

    def __init__(
        self,
        plugins: Iterable[Plugin] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        targets: Mapping[str, object] | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._targets = dict(targets or {})
        self._lock = threading.RLock()
        found = discover(self._environ) if plugins is None else plugins
        self._entries: list[LoadedPlugin | Plugin] = list(found)

    @classmethod
    def of_objects(
        cls, *, backends: Mapping[str, object] | None = None, extensions: Mapping[str, object] | None = None
    ) -> Registry:
        """A registry of plugin objects that are here already, as tests have them. A child process cannot see them."""
        backends, extensions = backends or {}, extensions or {}
        plugins = [Plugin(name=name, group=BACKENDS_GROUP, value="") for name in sorted(backends)]
        plugins += [Plugin(name=name, group=PLUGINS_GROUP, value="") for name in sorted(extensions)]
        return cls(plugins, targets={**extensions, **backends})

    @property
    def plugins(self) -> list[Plugin]:
        """Every plugin with what is known of it now. Loads nothing."""
        with self._lock:
            return [entry if isinstance(entry, Plugin) else entry.plugin for entry in self._entries]

    def load_all(self) -> list[Plugin]:
        """Load and check every plugin that may be loaded, ask each its data, and return them all."""
        self.commands()
        for index, plugin in enumerate(self.plugins):
            if plugin.group == BACKENDS_GROUP:
                self._load(index)
        return self.plugins

    def backend_names(self) -> list[str]:
        """Installed backends by name, broken ones included and disabled ones not. Loads nothing."""
        return sorted({p.name for p in self.plugins if p.group == BACKENDS_GROUP and p.state != PluginState.DISABLED})

    def backend(self, name: str) -> BackendPlugin:
        """The backend called ``name``, loaded.

        Raises:
            BackendUnavailableError: it is not installed, or ``POCKETLLM_PLUGINS`` leaves it out.
            PluginError: it is broken or incompatible; the message says why.
        """
        for index, plugin in enumerate(self.plugins):
            if plugin.group == BACKENDS_GROUP and plugin.name == name:
                loaded = self._load(index)
                if loaded.plugin.state == PluginState.DISABLED:
                    raise self._disabled_error(name)
                if loaded.plugin.state != PluginState.OK:
                    raise _unusable(loaded.plugin)
                return BackendPlugin(self, loaded)
        distribution = f"pocketllm-{name}"
        install = (
            f"pip install {distribution}" if name in OWN_BACKENDS else f"install its distribution ({distribution}?)"
        )
        raise BackendUnavailableError(
            f"Backend {name!r} is not installed: {install}, or take an installed one. "
            + known_names("backend", name, self.backend_names()),
            param="backend",
        )

    def extensions(self) -> list[tuple[str, object]]:
        """Plugins with engine-scope hooks, as (name, object) by name: the order to register them in, innermost first.

        A broken one raises nothing here; it is listed in :attr:`plugins` and logged once.
        """
        return [
            (loaded.plugin.name, loaded.target)
            for loaded in self._load_group(PLUGINS_GROUP)
            if loaded.target is not None and set(loaded.plugin.hooks) & set(ENGINE_HOOKS)
        ]

    def commands(self, reserved: Collection[str] = ()) -> list[CommandPart]:
        """Subcommands that plugins bring, by plugin name. One that is ``reserved`` or taken breaks its plugin."""
        parts: dict[str, CommandPart] = {}
        for loaded in self._load_group(PLUGINS_GROUP):
            if "pocketllm_commands" in loaded.plugin.hooks:
                answer = self._ask(loaded, functools.partial(_ask_commands, taken={*reserved, *parts}))
                parts.update({part.name: part for part in answer or ()})
        return list(parts.values())

    def syntaxes(self) -> list[ToolCallSyntax]:
        """Tool-call syntaxes that plugins bring, by plugin name; one that does not load breaks its plugin."""
        found: list[ToolCallSyntax] = []
        for loaded in self._load_group(PLUGINS_GROUP):
            if "pocketllm_syntaxes" in loaded.plugin.hooks:
                found += self._ask(loaded, _ask_syntaxes) or ()
        return found

    def ask_model(self, name: str) -> ModelSource | None:
        """The first plugin's answer to ``pocketllm_resolve_model``, by plugin name."""
        for loaded in self._load_group(PLUGINS_GROUP):
            if "pocketllm_resolve_model" in loaded.plugin.hooks:
                source = self._ask(loaded, functools.partial(_ask_source, name=name))
                if source is not None:
                    return source
        return None

    def mark_broken(self, plugin: Plugin, error: BaseException) -> PluginError:
        """Note that a plugin raised or answered nonsense, and return what to raise for it."""
        marked = broken(plugin, error)
        with self._lock:
            for index, current in enumerate(self.plugins):
                if (current.group, current.name) == (plugin.group, plugin.name):
                    self._entries[index] = LoadedPlugin(marked)
        return _unusable(marked)

    def _load_group(self, group: str) -> list[LoadedPlugin]:
        return [self._load(index) for index, plugin in enumerate(self.plugins) if plugin.group == group]

    def _load(self, index: int) -> LoadedPlugin:
        with self._lock:
            entry = self._entries[index]
            if isinstance(entry, Plugin):
                entry = load_plugin(entry, self._environ, self._targets.get(entry.name))
                self._entries[index] = entry
                # A broken backend is told of when it is asked for, or when `auto` passes it over.
                if entry.plugin.group == PLUGINS_GROUP and entry.plugin.state == PluginState.BROKEN:
                    _logger.warning("%s", summary(entry.plugin))
            return entry

    def _ask(self, loaded: LoadedPlugin, call: Callable[[Any], T]) -> T | None:
        """The answer of one plugin to one host-scope hook; None, and a broken plugin, when it raises."""
        if loaded.relay is None:
            return None
        try:
            return call(loaded.relay.hook)
        # A foreign hook may raise anything; its plugin is marked and logged.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self.mark_broken(loaded.plugin, error)
            _logger.warning("%s", summary(broken(loaded.plugin, error)))
            return None

    def _disabled_error(self, name: str) -> BackendUnavailableError:
        listed = ", ".join(sorted(selected_names(self._environ) or ())) or "nothing"
        return BackendUnavailableError(
            f"Backend {name!r} is installed but disabled: {SELECTION_VARIABLE} names {listed}. Add {name!r} to it, or "
            "unset it.",
            param="backend",
        )


def summary(plugin: Plugin) -> str:
    """One line about a plugin that cannot be used."""
    kind = "Backend" if plugin.group == BACKENDS_GROUP else "Plugin"
    source = f" ({plugin.distribution} {plugin.version})" if plugin.distribution else ""
    return f"{kind} {plugin.name!r}{source} is {plugin.state}: {plugin.reason} See `pocketllm plugins`."


def _unusable(plugin: Plugin) -> PluginError:
    if "\n" not in plugin.error.strip():
        return PluginError(summary(plugin), param="backend")
    return PluginError(f"{summary(plugin)}\n{plugin.error}", param="backend")


def _ask_commands(hook: Any, taken: Collection[str]) -> list[CommandPart]:
    answer = hook.pocketllm_commands()
    if not isinstance(answer, list | tuple) or not all(isinstance(part, CommandPart) for part in answer):
        raise PluginError("pocketllm_commands did not return a list of CommandPart.")
    for part in answer:
        if part.name in taken:
            raise PluginError(f"pocketllm_commands brings the command {part.name!r}, which exists already.")
        if not VALUE_PATTERN.fullmatch(part.target) or ":" not in part.target:
            raise PluginError(
                f"pocketllm_commands: the command {part.name!r} points to {part.target!r}, which is not "
                "'module:attribute'."
            )
    return list(answer)


def _ask_syntaxes(hook: Any) -> list[ToolCallSyntax]:
    answer = hook.pocketllm_syntaxes()
    if not isinstance(answer, list | tuple) or not all(isinstance(part, SyntaxPart) for part in answer):
        raise PluginError("pocketllm_syntaxes did not return a list of SyntaxPart.")
    syntaxes = []
    for part in answer:
        syntax = import_target(part.target)
        for method in ("recognises", "parse", "stream"):
            if not callable(getattr(syntax, method, None)):
                raise PluginError(
                    f"pocketllm_syntaxes: {part.target!r} has no method {method}(): see pocketllm.text.tool_calls.base."
                )
        syntaxes.append(cast("ToolCallSyntax", syntax))
    return syntaxes


def _ask_source(hook: Any, name: str) -> ModelSource | None:
    answer = hook.pocketllm_resolve_model(name=name)
    if answer is not None and not isinstance(answer, ModelSource):
        raise PluginError(f"pocketllm_resolve_model returned {type(answer).__name__}, not a ModelSource or None.")
    return answer


_default_registry: Registry | None = None
_default_lock = threading.Lock()


def get_registry() -> Registry:
    """The registry of this process, made on first use from installed metadata. Threads: any."""
    global _default_registry
    with _default_lock:
        if _default_registry is None:
            _default_registry = Registry()
        return _default_registry
