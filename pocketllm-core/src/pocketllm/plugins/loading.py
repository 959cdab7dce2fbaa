"""Load one plugin and judge it, in a relay of its own: whatever is wrong with it stays with it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import traceback
from collections.abc import Mapping

import msgspec
import pluggy

from pocketllm.errors import PluginError
from pocketllm.plugins.backend_options import OPTION_TYPES
from pocketllm.plugins.discovery import BACKENDS_GROUP, Plugin, PluginState
from pocketllm.plugins.hook_calls import new_relay, register_checked
from pocketllm.types import CONTRACT_VERSION, BackendInfo

BACKEND_HOOKS = ("pocketllm_backend", "pocketllm_probe", "pocketllm_open")
"""Every backend implements these."""


@dataclasses.dataclass(frozen=True)
class LoadedPlugin:
    """A plugin after loading was tried. ``target`` and ``relay`` are None unless the state is "ok"."""

    plugin: Plugin
    target: object | None = None
    relay: pluggy.PluginManager | None = None


def load_plugin(plugin: Plugin, environ: Mapping[str, str] | None = None, target: object | None = None) -> LoadedPlugin:
    """Import the plugin's object (or take ``target``), check its hooks and, of a backend, its card.

    Never raises for the plugin's faults: a broken one comes back as data with its traceback. A plugin that is broken,
    incompatible or disabled already comes back as it is.
    """
    if plugin.state not in (PluginState.FOUND, PluginState.OK):
        return LoadedPlugin(plugin)
    environ = os.environ if environ is None else environ
    try:
        target = import_target(plugin.value) if target is None else target
        version = _other_contract(target) if plugin.group == BACKENDS_GROUP else None
        if version is not None:
            return LoadedPlugin(_incompatible(plugin, version))
        relay = new_relay(plugin.name, environ)
        hooks = register_checked(relay, target, plugin.name)
        _check_group(plugin, hooks)
        info = _card(plugin, relay) if plugin.group == BACKENDS_GROUP else None
    # Whatever a foreign module does while it is imported or asked, sys.exit() included, may break only this plugin.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return LoadedPlugin(broken(plugin, error))
    loaded = msgspec.structs.replace(plugin, state=PluginState.OK, hooks=hooks, info=info)
    return LoadedPlugin(loaded, target, relay)


def broken(plugin: Plugin, error: BaseException) -> Plugin:
    """The plugin marked broken: by its reason where we found the fault, by the traceback where it raised."""
    own = isinstance(error, PluginError)
    text = str(error) if own else "".join(traceback.format_exception(error)).strip()
    return msgspec.structs.replace(plugin, state=PluginState.BROKEN, error=text)


def import_target(value: str) -> object:
    module_name, _, attributes = value.partition(":")
    target: object = importlib.import_module(module_name)
    for attribute in filter(None, attributes.split(".")):
        target = getattr(target, attribute)
    return target


def _other_contract(target: object) -> tuple[int, int] | None:
    """The contract version of a backend built for another major one; asked before its hooks are judged by ours."""
    function = getattr(target, BACKEND_HOOKS[0], None)
    if not callable(function) or inspect.isclass(target) or inspect.iscoroutinefunction(function):
        return None
    match getattr(function(), "contract_version", None):
        case (int(major), int(minor)) if major != CONTRACT_VERSION[0]:
            return major, minor
    return None


def _incompatible(plugin: Plugin, version: tuple[int, int]) -> Plugin:
    reason = (
        f"It is built for version {_dotted(version)} of the hook contract and this pocketllm-core has "
        f"{_dotted(CONTRACT_VERSION)}: install versions of {plugin.distribution or plugin.name} and pocketllm-core "
        "that agree on the first number."
    )
    return msgspec.structs.replace(plugin, state=PluginState.INCOMPATIBLE, error=reason)


def _check_group(plugin: Plugin, hooks: tuple[str, ...]) -> None:
    if plugin.group == BACKENDS_GROUP:
        missing = [name for name in BACKEND_HOOKS if name not in hooks]
        if missing:
            raise PluginError(f"A backend implements {', '.join(BACKEND_HOOKS)}; this one lacks {', '.join(missing)}.")
    elif not hooks:
        raise PluginError("It implements no hook: decorate its functions with pocketllm.hookspecs.hookimpl.")
    elif set(hooks) <= set(BACKEND_HOOKS):
        raise PluginError(f"It is a backend: name it in the entry-point group {BACKENDS_GROUP} instead.")


def _card(plugin: Plugin, relay: pluggy.PluginManager) -> BackendInfo:
    answer = relay.hook.pocketllm_backend()
    if not isinstance(answer, BackendInfo):
        raise PluginError(f"pocketllm_backend returned {type(answer).__name__}, not a BackendInfo.")
    try:
        # A Struct's constructor checks no types; a round trip does.
        info = msgspec.convert(msgspec.to_builtins(answer), BackendInfo)
    except (msgspec.ValidationError, TypeError) as fault:
        raise PluginError(f"pocketllm_backend returned a card with a wrong value: {fault}.") from fault
    if info.name != plugin.name:
        raise PluginError(
            f"The card says name={info.name!r} and the entry point says {plugin.name!r}: they must be the same word."
        )
    for spec in info.options:
        if spec.type not in OPTION_TYPES:
            known = ", ".join(OPTION_TYPES)
            raise PluginError(f"The option {spec.name!r} has the type {spec.type!r}: the types are {known}.")
    return info


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
