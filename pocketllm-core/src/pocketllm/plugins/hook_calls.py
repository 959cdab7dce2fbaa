"""Relays of hook calls: a pluggy manager with our specs, its checks of a plugin, and the tracing of calls."""

from __future__ import annotations

import difflib
import inspect
import os
import reprlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pluggy

from pocketllm.errors import PluginError
from pocketllm.hookspecs import PROJECT_NAME, EngineScope, HostScope

TRACE_VARIABLE = "POCKETLLM_TRACE_HOOKS"
HOOK_PREFIX = PROJECT_NAME + "_"


def _hook_names(scope: type) -> tuple[str, ...]:
    return tuple(sorted(name for name in vars(scope) if name.startswith(HOOK_PREFIX)))


HOST_HOOKS = _hook_names(HostScope)
ENGINE_HOOKS = _hook_names(EngineScope)

_terse = reprlib.Repr()
_terse.maxstring, _terse.maxother = 60, 160


def new_relay(label: str, environ: Mapping[str, str] | None = None) -> pluggy.PluginManager:
    """An empty ``pluggy.PluginManager`` that knows the specs of both scopes.

    With ``POCKETLLM_TRACE_HOOKS=1`` in ``environ`` (default: the process's) its calls are printed under ``label``.
    """
    relay = pluggy.PluginManager(PROJECT_NAME)
    relay.add_hookspecs(HostScope)
    relay.add_hookspecs(EngineScope)
    environ = os.environ if environ is None else environ
    if environ.get(TRACE_VARIABLE, "").strip().lower() not in ("", "0", "false", "no", "off"):
        trace_calls(relay, label)
    return relay


def trace_calls(relay: pluggy.PluginManager, label: str) -> None:
    """Print every hook call of ``relay`` and its outcome to stderr. Arguments appear with their terse reprs."""
    started: list[float] = []  # calls nest within one thread; a call from another thread only blurs a duration

    def before(hook_name: str, hook_impls: Sequence[object], arguments: Mapping[str, object]) -> None:
        shown = ", ".join(f"{name}={_terse.repr(value)}" for name, value in arguments.items())
        print(f"hook {label}: {hook_name}({shown})", file=sys.stderr)
        started.append(time.perf_counter())

    def after(
        outcome: pluggy.Result[Any], hook_name: str, hook_impls: Sequence[object], arguments: Mapping[str, object]
    ) -> None:
        elapsed_ms = (time.perf_counter() - started.pop()) * 1e3 if started else 0.0
        error = outcome.exception
        result = f"raised {type(error).__name__}" if error is not None else f"-> {_terse.repr(outcome.get_result())}"
        print(f"hook {label}: {hook_name} {result} ({elapsed_ms:.2f} ms)", file=sys.stderr)

    relay.add_hookcall_monitoring(before, after)


def register_checked(relay: pluggy.PluginManager, plugin: object, name: str) -> tuple[str, ...]:
    """Register ``plugin`` and return the hooks it implements, sorted.

    Raises:
        PluginError: the object implements something that would never be called, or not as meant: a hook that does not
            exist, arguments that the spec does not have, a coroutine, a wrapper of a host-scope hook, a function with
            a hook's name but no ``@hookimpl``, or methods of a class that nobody instantiated. ``relay`` must then be
            thrown away.
    """
    if inspect.isclass(plugin):
        raise PluginError(f"The plugin object is the class {plugin.__name__}: let the entry point name an instance.")
    try:
        relay.register(plugin, name)
    except pluggy.PluginValidationError as fault:
        # pluggy's text spreads over lines; the part that tells is the same.
        raise PluginError("A hook does not match its spec: " + " ".join(str(fault).split())) from fault
    implemented = []
    for hook_name, implementation in _implementations(relay, plugin):
        _check_implementation(relay, hook_name, implementation)
        if hook_name in HOST_HOOKS + ENGINE_HOOKS:
            implemented.append(hook_name)
    _check_undecorated(plugin, implemented)
    return tuple(sorted(implemented))


def _implementations(relay: pluggy.PluginManager, plugin: object) -> Iterator[tuple[str, pluggy.HookImpl]]:
    for caller in relay.get_hookcallers(plugin) or ():
        for implementation in caller.get_hookimpls():
            if implementation.plugin is plugin:
                yield caller.name, implementation


def _check_implementation(relay: pluggy.PluginManager, hook_name: str, implementation: pluggy.HookImpl) -> None:
    function = implementation.function
    if hook_name not in HOST_HOOKS + ENGINE_HOOKS:
        if implementation.optionalhook:
            return  # the author says that it belongs to a newer contract
        raise PluginError(f"There is no hook {hook_name!r}. {_nearest_hook(hook_name)}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(f"{hook_name} is a coroutine function, but hooks are plain functions: remove 'async'.")
    if hook_name in HOST_HOOKS and (implementation.wrapper or implementation.hookwrapper):
        raise PluginError(f"{hook_name} is asked of one plugin at a time and cannot be wrapped: remove wrapper=True.")


def _check_undecorated(plugin: object, implemented: list[str]) -> None:
    """A function named like a hook (or nearly so) that pluggy passed over."""
    for name in dir(plugin):
        if not name.startswith(HOOK_PREFIX) or name in implemented:
            continue
        function = inspect.getattr_static(plugin, name, None)
        if not isinstance(function, Callable) or inspect.isclass(function):  # type: ignore[arg-type]  # abc
            continue
        if hasattr(function, PROJECT_NAME + "_impl"):
            continue  # decorated: judged above
        if _near(name, cutoff=0.75):
            raise PluginError(f"The function {name} is not decorated with @hookimpl. {_nearest_hook(name)}")


def _nearest_hook(name: str) -> str:
    near = _near(name, cutoff=0.5)
    if near == name:
        return f"Import it from pocketllm.hookspecs and put it above {name}."
    return f"Did you mean {near!r}?" if near else f"The hooks are {', '.join(HOST_HOOKS + ENGINE_HOOKS)}."


def _near(name: str, cutoff: float) -> str | None:
    """The hook whose name is most like ``name``; the prefix that all share says nothing."""
    words = [hook.removeprefix(HOOK_PREFIX) for hook in HOST_HOOKS + ENGINE_HOOKS]
    near = difflib.get_close_matches(name.removeprefix(HOOK_PREFIX), words, n=1, cutoff=cutoff)
    return HOOK_PREFIX + near[0] if near else None
