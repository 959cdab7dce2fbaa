"""The command ``pocketllm serve``; ``pocketllm-serve`` is the same program."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pocketllm.cli import main as program
from pocketllm.cli.engine_options import engine_args_from_options, engine_options
from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm_server.config.config_file import CONFIG_VARIABLE, ConfiguredCommand, is_given
from pocketllm_server.config.server_options import SERVER_FIELDS, server_options, settings_from_options

if TYPE_CHECKING:
    from pocketllm.engine_args import EngineArgs
    from pocketllm.types import ModelSource
    from pocketllm_server.config.settings import ServerSettings

logger = logging.getLogger(__name__)

# Threads that render and tokenize must not keep the event loop from the interpreter's lock for longer at each turn.
SWITCH_INTERVAL_S = 0.001

_SUPERVISOR = "For tensor parallelism; without effect on one device."
_INERT = {
    "enable_auto_tool_choice": "Tool calls need no flag here: --enable-auto-tool-choice has no effect.",
    "tool_call_parser": "The syntax of tool calls is recognised from the model: --tool-call-parser has no effect.",
    "reasoning_parser": "Reasoning is recognised from the model: --reasoning-parser has no effect.",
}


def main() -> None:
    """Console script ``pocketllm-serve``."""
    sys.exit(program(["serve", *sys.argv[1:]]))


@click.command(
    cls=ConfiguredCommand,
    epilog="The command line wins over the config file, which wins over the environment, which wins over the default. "
    "Names that vLLM uses for the same things, such as --max-num-seqs, are understood too.",
)
@click.argument("model_argument", metavar="[MODEL]", required=False)
@engine_options
@server_options
@click.option("--config", metavar="FILE", envvar=CONFIG_VARIABLE, show_envvar=True,
              help="Take options from a TOML file; its keys are the options' names.")  # fmt: skip
@click.option("--print-config", is_flag=True, help="Print every effective value and where it came from, and end.")
@click.option("--tensor-parallel-startup-timeout", type=float, metavar="SECONDS", help=_SUPERVISOR)
@click.option("--tensor-parallel-shutdown-timeout", type=float, metavar="SECONDS", help=_SUPERVISOR)
@click.option("--tensor-parallel-master-addr", metavar="ADDRESS", help=_SUPERVISOR)
@click.option("--tensor-parallel-master-port", type=int, help=_SUPERVISOR)
@click.option("--tensor-parallel-rendezvous-dir", metavar="FOLDER", help=_SUPERVISOR)
@click.option("--no-tensor-parallel-supervisor", is_flag=True, help=_SUPERVISOR)
@click.option("--enable-auto-tool-choice", is_flag=True, hidden=True)
@click.option("--tool-call-parser", hidden=True)
@click.option("--reasoning-parser", hidden=True)
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    model_argument: str | None,
    config: str | None,
    print_config: bool,
    tensor_parallel_startup_timeout: float | None,
    tensor_parallel_shutdown_timeout: float | None,
    tensor_parallel_master_addr: str | None,
    tensor_parallel_master_port: int | None,
    tensor_parallel_rendezvous_dir: str | None,
    no_tensor_parallel_supervisor: bool,
    **options: Any,
) -> int:
    """Serve a model over HTTP, for any OpenAI client.

    The listener answers at once; /ready says when the model does. Ctrl-C or SIGTERM lets running requests finish, a
    second one stops at once.
    """
    from pocketllm.model_sources.resolve import resolve_model
    from pocketllm.plugins.registry import get_registry

    notes = [note for name, note in _INERT.items() if options.pop(name)]
    server = {name: options.pop(name) for name in SERVER_FIELDS}
    if model_argument is not None:
        if is_given(options, "model") and options["model"] != model_argument:
            raise click.UsageError(f"Two models are named, {model_argument!r} and {options['model']!r}: give one.")
        options["model"] = model_argument
    args = engine_args_from_options(announce=notes.append, **options)
    if print_config:
        from pocketllm_server.config.effective_config import effective_config

        settings_from_options(server, "default")  # what would be refused is refused here too
        click.echo(effective_config(ctx, args))
        return 0
    if args.tensor_parallel_size > 1:
        raise UnsupportedFeatureError(
            f"tensor_parallel_size = {args.tensor_parallel_size} is not supported yet: serve on one device.",
            param="tensor_parallel_size",
        )
    source = resolve_model(get_registry(), args.checkpoint_dir)
    return _serve(args, settings_from_options(server, source.name), source, notes)


def _serve(args: EngineArgs, settings: ServerSettings, source: ModelSource, notes: list[str]) -> int:
    from pocketllm.cli.loading import loading_bar
    from pocketllm_server.logs import configure_logging
    from pocketllm_server.transport.listener import PortInUseError, bind, bind_unix, url_of
    from pocketllm_server.transport.tls import tls_context

    configure_logging(settings.log_level, settings.log_format)
    is_secure = tls_context(settings) is not None
    try:
        listener = bind_unix(settings.uds) if settings.uds else bind(settings.host, settings.port)
    except PortInUseError as error:
        raise click.ClickException(error.message) from None
    except ConfigurationError as error:
        raise click.UsageError(error.message) from None
    # Where a collector reads both streams, a line that is not JSON would be one it cannot read.
    say: Callable[[str], None] = logger.info if settings.log_format == "json" else _say
    for note in notes:
        say(note)
    say(_greeting(url_of(listener, secure=is_secure), settings, source))
    if not settings.api_keys and not settings.uds and not _is_loopback(listener.getsockname()[0]):
        logger.warning("Everybody who reaches %s may use this server: no API key is asked for.", url_of(listener))

    with loading_bar() as (report, stop):

        def interrupt(line: str) -> None:
            stop()
            say(line)

        async def run() -> int:
            from pocketllm.async_llm import AsyncLLM
            from pocketllm_server.app import create_app
            from pocketllm_server.serve import serve as serve_app

            # Modules live as long as the process. Walking them made each full collection some milliseconds long, and a
            # large body sets off several of them, all with the interpreter's lock held.
            gc.collect()
            gc.freeze()
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            return await serve_app(create_app(AsyncLLM(args, on_progress=report), settings), listener, interrupt)

        return asyncio.run(run())


def _greeting(url: str, settings: ServerSettings, source: ModelSource) -> str:
    origin = f" ({source.origin})" if source.origin else ""
    body = '{"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 48}'
    socket, base = "", url
    if settings.uds:
        scheme = "https" if settings.ssl_certfile else "http"
        socket, base = f"--unix-socket {shlex.quote(settings.uds)} ", f"{scheme}://localhost"
    key = "-H 'Authorization: Bearer KEY' " if settings.api_keys else ""
    return (
        f"Serving {settings.served_model_name}{origin} at {url}; the model is loading, and {base}/ready says when it "
        "answers.\n"
        "Try it:\n"
        f"  curl {socket}{base}/v1/chat/completions {key}-H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _say(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()
