"""``pocketllm plugins``: what is installed, and what is wrong with what does not work."""

from __future__ import annotations

import os

import click

from pocketllm.cli.table import json_text, table
from pocketllm.plugins.discovery import SELECTION_VARIABLE, Plugin, PluginState, unknown_names
from pocketllm.plugins.registry import get_registry
from pocketllm.plugins.selection import INSTALL_ONE


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(as_json: bool) -> None:
    """List every backend and extension with its version, hooks and state, and why a broken one is broken."""
    found = get_registry().load_all()
    if as_json:
        click.echo(json_text([_as_dict(plugin) for plugin in found]))
        return
    rows = [(p.name, _kind(p), p.state, f"{p.distribution} {p.version}".strip(), _hooks(p)) for p in found]
    click.echo(table(("NAME", "KIND", "STATE", "DISTRIBUTION", "HOOKS"), rows))
    for plugin in found:
        if plugin.error:
            click.echo(f"\n{plugin.name} is {plugin.state}:\n" + _indented(plugin.error))
    for name in unknown_names(found, os.environ):
        click.echo(f"\n{SELECTION_VARIABLE} names {name!r}, which no installed distribution provides.")
    if not any(_kind(plugin) == "backend" and plugin.state == PluginState.OK for plugin in found):
        click.echo(f"\nNo backend is ready: {INSTALL_ONE}.")


def _as_dict(plugin: Plugin) -> dict[str, object]:
    return {
        "name": plugin.name,
        "kind": _kind(plugin),
        "state": plugin.state,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "value": plugin.value,
        "hooks": plugin.hooks,
        "error": plugin.error or None,
        "backend": plugin.info,
    }


def _kind(plugin: Plugin) -> str:
    return plugin.group.rpartition(".")[2].removesuffix("s")


def _hooks(plugin: Plugin) -> str:
    return ", ".join(name.removeprefix("pocketllm_") for name in plugin.hooks) or "-"


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.strip().splitlines())
