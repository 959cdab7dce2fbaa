"""Third-party distributions as an installer leaves them: a module and a ``*.dist-info`` folder on the path."""

from __future__ import annotations

from pathlib import Path

BACKENDS = "pocketllm.backends"
PLUGINS = "pocketllm.plugins"

_BACKEND = """
from pocketllm.hookspecs import hookimpl
from pocketllm.types import BackendInfo, Offer, OptionSpec, Refusal

@hookimpl
def pocketllm_backend():
    return BackendInfo(
        name={name!r},
        model_formats=("gguf", "safetensors"),
        devices=("cpu", "abacus"),
        options=(OptionSpec(name="num_threads", type="int"), OptionSpec(name="label", type="str")),
    )

@hookimpl
def pocketllm_probe(checkpoint, args):
    return Offer(rank={rank}, reason="It counts quickly.", device="cpu")

@hookimpl
def pocketllm_open(args, checkpoint, report):
    return object()
"""


def backend_source(name: str, *, rank: int = 50, more: str = "") -> str:
    """A module that is a backend in order; ``more`` is appended and may replace its functions."""
    return _BACKEND.format(name=name, rank=rank) + more


def install(
    folder: Path,
    name: str,
    source: str,
    *,
    group: str = BACKENDS,
    entry_points: str | bytes | None = None,
    metadata: str | None = None,
    version: str = "1.0",
) -> None:
    """Put the distribution ``name`` (its module and its entry point have the same name) into ``folder``.

    Args:
        entry_points: the whole file, when not the usual two lines.
        metadata: the whole METADATA file, when not a proper one; "" leaves it out.
    """
    (folder / f"{name}.py").write_text(source)
    information = folder / f"{name}-{version}.dist-info"
    information.mkdir()
    if entry_points is None:
        entry_points = f"[{group}]\n{name} = {name}\n"
    if isinstance(entry_points, str):
        entry_points = entry_points.encode()
    (information / "entry_points.txt").write_bytes(entry_points)
    if metadata is None:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    if metadata:
        (information / "METADATA").write_text(metadata)


BROKEN = {
    "import_error": "import a_module_that_nobody_has",
    "exits": "import sys\nsys.exit(3)",
    "misspelt": backend_source("misspelt", more="\n@hookimpl\ndef pocketllm_capabilitys(): ...\n"),
    "undecorated": backend_source("undecorated", more="\ndef pocketllm_open(args, checkpoint, report): ...\n"),
    "coroutine": backend_source("coroutine", more="\n@hookimpl\nasync def pocketllm_probe(checkpoint, args): ...\n"),
    "wrapper": backend_source(
        "wrapper", more="\n@hookimpl(wrapper=True)\ndef pocketllm_probe(checkpoint, args):\n    return (yield)\n"
    ),
    "extra_argument": backend_source(
        "extra_argument", more="\n@hookimpl\ndef pocketllm_probe(checkpoint, args, device): ...\n"
    ),
    "no_open": backend_source("no_open", more="\ndel pocketllm_open\n"),
    "raising_card": backend_source("raising_card", more="\n@hookimpl\ndef pocketllm_backend():\n    1 / 0\n"),
    "other_name": backend_source("somebody_else"),
    "not_a_card": backend_source("not_a_card", more="\n@hookimpl\ndef pocketllm_backend():\n    return {}\n"),
    "wrong_type": backend_source(
        "wrong_type",
        more="\n@hookimpl\ndef pocketllm_backend():\n    return BackendInfo(name='wrong_type', devices=3)\n",
    ),
    "wrong_option": backend_source(
        "wrong_option",
        more="\n@hookimpl\ndef pocketllm_backend():\n"
        "    return BackendInfo(name='wrong_option', options=(OptionSpec(name='x', type='complex'),))\n",
    ),
    "a_class": "class Backend: ...\n",
}
"""Module source of distributions that are broken, each in one way; "a_class" needs the value ``a_class:Backend``."""

WHY_BROKEN = {
    "import_error": "No module named 'a_module_that_nobody_has'",
    "exits": "SystemExit: 3",
    "misspelt": "There is no hook 'pocketllm_capabilitys'. Did you mean 'pocketllm_capabilities'?",
    "undecorated": "The function pocketllm_open is not decorated with @hookimpl",
    "coroutine": "pocketllm_probe is a coroutine function",
    "wrapper": "pocketllm_probe is asked of one plugin at a time and cannot be wrapped",
    "extra_argument": "{'device'}",
    "no_open": "lacks pocketllm_open",
    "raising_card": "ZeroDivisionError",
    "other_name": "The card says name='somebody_else' and the entry point says 'other_name'",
    "not_a_card": "pocketllm_backend returned dict, not a BackendInfo",
    "wrong_type": "a card with a wrong value",
    "wrong_option": "the type 'complex'",
    "a_class": "is the class Backend",
}
"""A part of what is said about each of :data:`BROKEN`."""


def install_broken(folder: Path, name: str) -> None:
    """Put one of :data:`BROKEN` into ``folder``."""
    entry_points = f"[{BACKENDS}]\na_class = a_class:Backend\n" if name == "a_class" else None
    install(folder, name, BROKEN[name], entry_points=entry_points)
