"""The command ``pocketllm serve``; ``pocketllm-serve`` is the same program."""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from pocketllm.cli import main as program
from pocketllm.cli.engine_options import EngineCommand, engine_args_from_options, engine_options
from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm_server.settings import MIB, ServerSettings

if TYPE_CHECKING:
    from pocketllm.engine_args import EngineArgs
    from pocketllm.types import ModelSource

_LEVELS = ("debug", "info", "warning", "error")
_SUPERVISOR = "For tensor parallelism; without effect on one device."


def main() -> None:
    """Console script ``pocketllm-serve``."""
    sys.exit(program(["serve", *sys.argv[1:]]))


@click.command(cls=EngineCommand)
@engine_options
@click.option("--host", default="127.0.0.1", show_default=True, envvar="POCKETLLM_HOST", show_envvar=True,
              help="Address to listen on; 0.0.0.0 is every interface.")  # fmt: skip
@click.option("--port", type=int, default=8000, show_default=True, envvar="POCKETLLM_PORT", show_envvar=True,
              help="Port to listen on; 0 takes a free one.")  # fmt: skip
@click.option("--served-model-name", envvar="POCKETLLM_SERVED_MODEL_NAME", show_envvar=True, metavar="NAME",
              help="Name in responses and in /v1/models.  [default: the model's]")  # fmt: skip
@click.option("--drain-timeout", "drain_timeout_s", type=float, default=30.0, show_default=True,
              envvar="POCKETLLM_DRAIN_TIMEOUT", show_envvar=True, metavar="SECONDS",
              help="How long requests may run on after SIGTERM.")  # fmt: skip
@click.option("--max-body-bytes", type=int, default=16 * MIB, show_default=True,
              envvar="POCKETLLM_MAX_BODY_BYTES", show_envvar=True, help="Largest request body.")  # fmt: skip
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True,
              envvar="POCKETLLM_LOG_LEVEL", show_envvar=True, help="Least level that is logged.")  # fmt: skip
@click.option("--tensor-parallel-startup-timeout", type=float, metavar="SECONDS", help=_SUPERVISOR)
@click.option("--tensor-parallel-shutdown-timeout", type=float, metavar="SECONDS", help=_SUPERVISOR)
@click.option("--tensor-parallel-master-addr", metavar="ADDRESS", help=_SUPERVISOR)
@click.option("--tensor-parallel-master-port", type=int, help=_SUPERVISOR)
@click.option("--tensor-parallel-rendezvous-dir", metavar="FOLDER", help=_SUPERVISOR)
@click.option("--no-tensor-parallel-supervisor", is_flag=True, help=_SUPERVISOR)
def serve(
    host: str,
    port: int,
    served_model_name: str | None,
    drain_timeout_s: float,
    max_body_bytes: int,
    log_level: str,
    tensor_parallel_startup_timeout: float | None,
    tensor_parallel_shutdown_timeout: float | None,
    tensor_parallel_master_addr: str | None,
    tensor_parallel_master_port: int | None,
    tensor_parallel_rendezvous_dir: str | None,
    no_tensor_parallel_supervisor: bool,
    **engine: Any,
) -> int:
    """Serve a model over HTTP, for any OpenAI client.

    The listener answers at once; /ready says when the model does. Ctrl-C or SIGTERM lets running requests finish, a
    second one stops at once.
    """
    from pocketllm.registry import get_registry

    notes: list[str] = []
    args = engine_args_from_options(announce=notes.append, **engine)
    if args.tensor_parallel_size > 1:
        raise UnsupportedFeatureError(
            f"tensor_parallel_size = {args.tensor_parallel_size} is not supported yet: serve on one device.",
            param="tensor_parallel_size",
        )
    source = get_registry().resolve_model(args.checkpoint_dir)
    settings = ServerSettings(
        served_model_name=served_model_name or source.name,
        host=host,
        port=port,
        drain_timeout_s=drain_timeout_s,
        max_body_bytes=max_body_bytes,
    )
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return _serve(args, settings, source, notes)


def _serve(args: EngineArgs, settings: ServerSettings, source: ModelSource, notes: list[str]) -> int:
    from pocketllm_server.listener import PortInUseError, bind, url_of
    from pocketllm_server.loading_bar import loading_bar

    try:
        listener = bind(settings.host, settings.port)
    except PortInUseError as error:
        raise click.ClickException(error.message) from None
    except ConfigurationError as error:
        raise click.UsageError(error.message) from None
    for note in notes:
        click.echo(note)
    click.echo(_greeting(url_of(listener), settings.served_model_name, source))
    sys.stdout.flush()

    with loading_bar() as (report, stop):

        def say(line: str) -> None:
            stop()
            _say(line)

        async def run() -> int:
            from pocketllm.async_llm import AsyncLLM
            from pocketllm_server.app import create_app
            from pocketllm_server.serve import serve as serve_app

            return await serve_app(create_app(AsyncLLM(args, on_progress=report), settings), listener, say)

        return asyncio.run(run())


def _greeting(url: str, name: str, source: ModelSource) -> str:
    origin = f" ({source.origin})" if source.origin else ""
    body = '{"messages": [{"role": "user", "content": "Hello!"}]}'
    return (
        f"Serving {name}{origin} at {url}; the model is loading, and {url}/ready says when it answers.\n"
        f"Try it:\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


def _say(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()
