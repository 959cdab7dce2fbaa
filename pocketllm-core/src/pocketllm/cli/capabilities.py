"""``pocketllm capabilities``: what an engine does with a model, and which request fields that makes work."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from pocketllm.cli.engine_options import EngineCommand, engine_args_from_options, engine_options
from pocketllm.cli.loading import open_llm
from pocketllm.cli.table import json_text, table
from pocketllm.fields import BOTH, supported_fields


@click.command(cls=EngineCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@engine_options
def capabilities(as_json: bool, **options: Any) -> None:
    """Open a model and say what its engine does. What it does not do, it refuses in a request."""
    args = engine_args_from_options(**options)
    with open_llm(args) as llm:
        declared = llm.capabilities
    fields = {endpoint: supported_fields(endpoint, declared) for endpoint in BOTH}
    if as_json:
        click.echo(json_text({**msgspec.structs.asdict(declared), "supported_fields": fields}))
        return
    rows = [(name, _shown(value)) for name, value in msgspec.structs.asdict(declared).items()]
    rows += [(f"fields of {endpoint}", ", ".join(names)) for endpoint, names in fields.items()]
    click.echo(table(("CAPABILITY", "VALUE"), rows))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return str(value) if value not in ({}, "") else "-"
