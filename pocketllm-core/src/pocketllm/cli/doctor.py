"""``pocketllm doctor``: for a model, every backend's offer or refusal and the reason."""

from __future__ import annotations

import os
from typing import Any

import click

from pocketllm.cli.engine_options import EngineCommand, engine_args_from_options, engine_options
from pocketllm.cli.environment_facts import environment_facts
from pocketllm.cli.program import EXIT_FAILED
from pocketllm.cli.table import json_text, table
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import PocketLLMError
from pocketllm.model_sources.resolve import resolve_model
from pocketllm.plugins.registry import Registry, get_registry
from pocketllm.plugins.selection import Considered, consider, select
from pocketllm.types import Offer


@click.command(cls=EngineCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@engine_options
@click.pass_context
def doctor(ctx: click.Context, /, as_json: bool, **options: Any) -> None:
    """Say which backend would serve a model, what every other one says to it, and what this machine is like.

    Nothing is loaded. The exit code is 0 when some backend serves the model.
    """
    args = engine_args_from_options(**options)
    report = examine(get_registry(), args)
    click.echo(json_text(report) if as_json else _shown(report))
    if report["selected"] is None:
        ctx.exit(EXIT_FAILED)


def examine(registry: Registry, args: EngineArgs) -> dict[str, Any]:
    """The whole report as plain data: environment, model, considered backends, the selected one or the error."""
    report: dict[str, Any] = {
        "environment": environment_facts(os.environ),
        "model": {"given": args.checkpoint_dir},
        "considered": [],
        "selected": None,
        "error": None,
    }
    try:
        source = resolve_model(registry, args.checkpoint_dir)
        report["model"] |= {"path": source.path, "origin": source.origin}
        from pocketllm.checkpoint import open_checkpoint

        checkpoint = open_checkpoint(
            source.path,
            model_format=args.model_format,
            config_path=args.config_path,
            tokenizer_path=args.tokenizer_path,
        )
        report["model"] |= {
            "format": checkpoint.format,
            "model_type": checkpoint.model_type,
            "num_parameters": checkpoint.num_parameters,
            "weights_bytes": checkpoint.weights_bytes,
            "quantization": checkpoint.quantization,
        }
        considered = consider(registry, args, checkpoint, registry.backend_names())
        report["considered"] = [_as_dict(entry) for entry in considered]
        report["selected"] = select(registry, args, checkpoint).backend.name
    except PocketLLMError as error:
        report["error"] = error.message
    return report


def _as_dict(entry: Considered) -> dict[str, Any]:
    offered = isinstance(entry.answer, Offer)
    return {
        "backend": entry.name,
        "verdict": "offer" if offered else "refusal" if entry.answer is not None else str(entry.state),
        "rank": entry.answer.rank if isinstance(entry.answer, Offer) else None,
        "device": entry.answer.device if isinstance(entry.answer, Offer) else None,
        "reason": entry.reason,
    }


def _shown(report: dict[str, Any]) -> str:
    parts = [
        "Machine\n" + _pairs(report["environment"]),
        "Model\n" + _pairs({name: value for name, value in report["model"].items() if value not in (None, "")}),
    ]
    if report["considered"]:
        rows = [
            (
                ("* " if entry["backend"] == report["selected"] else "  ") + entry["backend"],
                entry["verdict"] + (f" {entry['rank']}" if entry["rank"] is not None else ""),
                entry["device"] or "-",
                entry["reason"],
            )
            for entry in report["considered"]
        ]
        parts.append(table(("  BACKEND", "VERDICT", "DEVICE", "REASON"), rows))
    if report["selected"] is not None:
        parts.append(f"{report['selected']} serves it.")
    else:
        parts.append(f"Nothing serves it: {report['error']}")
    return "\n\n".join(parts)


def _pairs(values: dict[str, Any]) -> str:
    width = max(map(len, values))
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in values.items())
