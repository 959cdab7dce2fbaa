"""Which backends and extensions are installed, from metadata alone: nothing is imported here.

Entry points are read with our own loop. The standard one reads a whole environment or nothing: one malformed line of
one distribution would take every plugin away.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import logging
import os
import re
from collections.abc import Iterator, Mapping

import msgspec

from pocketllm.types import BackendInfo

BACKENDS_GROUP = "pocketllm.backends"
PLUGINS_GROUP = "pocketllm.plugins"
SELECTION_VARIABLE = "POCKETLLM_PLUGINS"

_GROUPS = (BACKENDS_GROUP, PLUGINS_GROUP)
VALUE_PATTERN = re.compile(r"[\w.]+(:[\w.]+)?")
_EXTRAS = re.compile(r"\s*\[.*\]$")
_logger = logging.getLogger(__name__)


class PluginState(enum.StrEnum):
    """What is known about a plugin."""

    FOUND = "found"
    """listed in metadata, not loaded yet"""
    OK = "ok"
    BROKEN = "broken"
    INCOMPATIBLE = "incompatible"
    """built for another major version of the hook contract"""
    DISABLED = "disabled"
    """left out by POCKETLLM_PLUGINS"""


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """One entry point as far as it is known; loading replaces it by a copy that knows more.

    Plain data, so that a child process can be told exactly which plugins its parent sees.
    """

    name: str
    group: str
    value: str
    """The object, as ``module`` or ``module:attribute``."""
    distribution: str = ""
    version: str = ""
    state: str = PluginState.FOUND
    error: str = ""
    """Why it is broken or incompatible: a sentence, or the traceback."""
    hooks: tuple[str, ...] = ()
    """Hooks it implements, once loaded."""
    info: BackendInfo | None = None
    """A backend's card, once loaded."""

    @property
    def reason(self) -> str:
        """The last line of ``error`` (of a traceback, the exception), as a sentence."""
        lines = self.error.strip().splitlines()
        return lines[-1].rstrip(".") + "." if lines else ""

    def __repr__(self) -> str:
        return f"Plugin({self.name}, {self.group}, {self.state})"


@dataclasses.dataclass(frozen=True)
class _Line:
    group: str
    name: str
    value: str


def discover(environ: Mapping[str, str] | None = None) -> list[Plugin]:
    """Every entry point of the groups ``pocketllm.backends`` and ``pocketllm.plugins``, by group and name.

    ``POCKETLLM_PLUGINS`` in ``environ`` (default: the process's) names what may be loaded, by entry point or
    distribution, with commas between; empty: nothing; unset: everything. The rest is listed as disabled. An entry that
    cannot be read, or whose name two distributions claim, is listed as broken.
    """
    environ = os.environ if environ is None else environ
    plugins: list[Plugin] = []
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        plugins.extend(_plugins_of(distribution, seen))
    plugins = _mark_contested(plugins)
    selected = selected_names(environ)
    if selected is not None:
        plugins = [_mark_disabled(plugin, selected) for plugin in plugins]
        for name in unknown_names(plugins, environ):
            _logger.warning(
                "%s names %r, but no installed distribution has a plugin of that name.", SELECTION_VARIABLE, name
            )
    return sorted(plugins, key=lambda plugin: (plugin.group, plugin.name, plugin.distribution))


def selected_names(environ: Mapping[str, str]) -> set[str] | None:
    """The names in ``POCKETLLM_PLUGINS``, or None when it is unset and everything may be loaded."""
    text = environ.get(SELECTION_VARIABLE)
    if text is None:
        return None
    return {name.strip() for name in text.split(",") if name.strip()}


def unknown_names(plugins: list[Plugin], environ: Mapping[str, str]) -> list[str]:
    """Names in ``POCKETLLM_PLUGINS`` that match no plugin: most likely misspelt."""
    selected = selected_names(environ) or set()
    return sorted(name for name in selected if not any(_is_named(plugin, {name}) for plugin in plugins))


def _plugins_of(distribution: importlib.metadata.Distribution, seen: set[str]) -> Iterator[Plugin]:
    """Plugins of one distribution. Names and versions are read only where there is something of ours."""
    error = ""
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except UnicodeDecodeError as unreadable:
        text = unreadable.object.decode("utf-8", errors="replace")
        error = f"entry_points.txt is not UTF-8 text: {unreadable}"
    except OSError as unreadable:
        # Whether it holds a plugin of ours cannot be known, so this can only be said aloud.
        _logger.warning("The metadata of an installed distribution cannot be read: %s", unreadable)
        return
    if "pocketllm." not in text:
        return
    name, version = _identity(distribution)
    normalised = re.sub(r"[-_.]+", "-", name).lower()
    if normalised in seen:
        return  # found again further down sys.path, where imports do not reach
    seen.add(normalised)
    for line in _lines(text):
        fault = error or _fault(line)
        yield Plugin(
            name=line.name or line.value,
            group=line.group,
            value=line.value,
            distribution=name,
            version=version,
            state=PluginState.BROKEN if fault else PluginState.FOUND,
            error=f"{fault} Reinstall or remove the distribution {name!r}." if fault else "",
        )


def _identity(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    try:
        metadata = distribution.metadata
        # No get(): the published protocol of metadata has none.
        name, version = (metadata[key] if key in metadata else None for key in ("Name", "Version"))  # noqa: SIM401
    except Exception:  # a foreign METADATA file can fail to parse in any way; the plugin is still listed
        _logger.warning("The METADATA of an installed plugin cannot be read.", exc_info=True)
        name = version = None
    return str(name or _folder_name(distribution)), str(version or "")


def _folder_name(distribution: importlib.metadata.Distribution) -> str:
    folder = os.path.basename(str(distribution.locate_file("")).rstrip(os.sep))
    path = getattr(distribution, "_path", None)  # no public name exists for a distribution without METADATA
    return os.path.basename(str(path)).split("-")[0] if path is not None else folder


def _lines(text: str) -> Iterator[_Line]:
    group = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif group in _GROUPS:
            name, separator, value = line.partition("=")
            if separator:
                yield _Line(group, name.strip(), _EXTRAS.sub("", value.strip()))
            else:
                yield _Line(group, "", line)


def _fault(line: _Line) -> str:
    if not line.name:
        return f"The entry point {line.value!r} has no name: the line should read 'name = module'."
    if not VALUE_PATTERN.fullmatch(line.value):
        return (
            f"The entry point {line.name!r} points to {line.value!r}, which is neither 'module' nor 'module:attribute'."
        )
    return ""


def _mark_contested(plugins: list[Plugin]) -> list[Plugin]:
    """Two distributions that claim one name: neither may win by the accident of path order."""
    claims: dict[tuple[str, str], list[Plugin]] = {}
    for plugin in plugins:
        claims.setdefault((plugin.group, plugin.name), []).append(plugin)
    marked = []
    for plugin in plugins:
        rivals = claims[plugin.group, plugin.name]
        if len(rivals) > 1:
            owners = " and ".join(sorted(f"{rival.distribution} {rival.version}".strip() for rival in rivals))
            error = f"The name {plugin.name!r} is claimed by {owners}: uninstall all but one."
            plugin = msgspec.structs.replace(plugin, state=PluginState.BROKEN, error=error)
        marked.append(plugin)
    return marked


def _mark_disabled(plugin: Plugin, selected: set[str]) -> Plugin:
    if _is_named(plugin, selected):
        return plugin
    return msgspec.structs.replace(plugin, state=PluginState.DISABLED, error="")


def _is_named(plugin: Plugin, selected: set[str]) -> bool:
    return plugin.name in selected or plugin.distribution in selected
