"""``pocketllm capabilities``: what an engine does with a model, asked of the open engine."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from pocketllm.cli.engine_options import EngineCommand, engine_args_from_options, engine_options
from pocketllm.cli.loading import open_llm
from pocketllm.cli.table import json_text, table


@click.command(cls=EngineCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@engine_options
def capabilities(as_json: bool, **options: Any) -> None:
    """Open a model and say what its engine does. What it does not do, it refuses in a request."""
    args = engine_args_from_options(**options)
    with open_llm(args) as llm:
        declared = llm.capabilities
    if as_json:
        click.echo(json_text(declared))
        return
    rows = [(name, _shown(value)) for name, value in msgspec.structs.asdict(declared).items()]
    click.echo(table(("CAPABILITY", "VALUE"), rows))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return str(value) if value not in ({}, "") else "-"
