"""The backend under test: an installed one, or an object that a module holds."""

from __future__ import annotations

import importlib

from pocketllm.errors import ConfigurationError
from pocketllm.plugins.discovery import BACKENDS_GROUP, Plugin
from pocketllm.plugins.registry import Registry, get_registry
from pocketllm.testing.settings import KitSettings
from pocketllm.types import BackendInfo


def registry_of(settings: KitSettings) -> Registry:
    """The installed plugins, or only the object that ``settings.target`` names."""
    if settings.target is None:
        return get_registry()
    return Registry([Plugin(name=settings.backend, group=BACKENDS_GROUP, value=settings.target)])


def card_of(target: str) -> BackendInfo:
    """The card of the object at ``module:attribute`` (or of the module at ``module:``).

    Raises:
        ConfigurationError: there is no such object, or it has no ``pocketllm_backend`` that answers a BackendInfo.
    """
    module, _, attribute = target.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{target} cannot be imported: {error}.") from error
    info = getattr(found, "pocketllm_backend", lambda: None)()
    if not isinstance(info, BackendInfo):
        raise ConfigurationError(f"{target} gives no BackendInfo: name an object with the hooks of a backend.")
    return info
