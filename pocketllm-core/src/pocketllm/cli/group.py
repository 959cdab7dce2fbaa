"""The command group: our own commands and those of plugins, listed from data and imported one at a time."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

import click

from pocketllm.errors import PluginError
from pocketllm.plugins.discovery import PLUGINS_GROUP, PluginState
from pocketllm.plugins.registry import get_registry, summary
from pocketllm.types import CommandPart

_OWN = (
    CommandPart(name="run", target="pocketllm.cli.run:run", help="Answer one prompt on the terminal."),
    CommandPart(name="chat", target="pocketllm.cli.chat:chat", help="Talk with a model on the terminal."),
    CommandPart(name="plugins", target="pocketllm.cli.plugins:plugins", help="List backends and extensions."),
    CommandPart(name="doctor", target="pocketllm.cli.doctor:doctor", help="Say which backend serves a model, and why."),
    CommandPart(
        name="capabilities", target="pocketllm.cli.capabilities:capabilities", help="Open a model and say what it does."
    ),
)
_OWN_BY_NAME = {part.name: part for part in _OWN}
_INSTALL_HINTS = {"serve": "pip install 'pocketllm-core[server]'"}


class CommandGroup(click.Group):
    """A click group whose commands are ``CommandPart`` data until one is asked for."""

    def parts(self) -> dict[str, CommandPart]:
        """Every command by name. Imports the light entry modules of plugins, no command."""
        brought = {part.name: part for part in get_registry().commands(reserved=tuple(_OWN_BY_NAME))}
        return {**_OWN_BY_NAME, **dict(sorted(brought.items()))}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.parts())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        part = _OWN_BY_NAME.get(cmd_name) or self.parts().get(cmd_name)
        return _import_command(part) if part is not None else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(part.name, part.help) for part in self.parts().values()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(self._no_such_command(args[0]), ctx)
        return super().resolve_command(ctx, args)

    def _no_such_command(self, name: str) -> str:
        import difflib

        message = f"There is no command {name!r}."
        if name in _INSTALL_HINTS:
            message = f"The command {name!r} comes with another distribution: {_INSTALL_HINTS[name]}."
        else:
            near = difflib.get_close_matches(name, [*self.parts(), *_INSTALL_HINTS], n=1)
            message += f" Did you mean {near[0]!r}?" if near else ""
        unusable = [plugin for plugin in get_registry().plugins if plugin.group == PLUGINS_GROUP]
        for plugin in unusable:
            if plugin.state == PluginState.DISABLED:
                message += f"\nPlugin {plugin.name!r}, which may bring it, is disabled by POCKETLLM_PLUGINS."
            elif plugin.state != PluginState.OK:
                message += f"\n{summary(plugin)}"
        return message


def _import_command(part: CommandPart) -> click.Command:
    module_name, _, attribute = part.target.partition(":")
    try:
        command: Any = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:
        if part in _OWN:
            raise
        raise PluginError(f"The command {part.name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(command, click.Command):
        raise PluginError(f"The command {part.name!r} points to {part.target!r}, which is not a click command.")
    return command


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"pocketllm {importlib.metadata.version('pocketllm-core')}")
        ctx.exit()


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it.")
def program() -> None:
    """Run language models on this machine.

    `pocketllm COMMAND --help` explains a command.
    """
