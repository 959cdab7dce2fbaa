"""Run a click command as a program: what each kind of failure looks like to a person and to a shell."""

from __future__ import annotations

import os
import sys

import click

from pocketllm.errors import ConfigurationError, PocketLLMError, UnsupportedFeatureError

EXIT_FAILED = 1
"""It was asked for rightly and could not be done."""
EXIT_USAGE = 2
"""The arguments are wrong, or name something that is not supported."""
EXIT_INTERRUPTED = 130


def run_program(command: click.Command, *, prog_name: str, args: list[str] | None = None) -> int:
    """Run ``command`` and return its exit code. Our own errors become one ``Error:`` message without a traceback.

    Every other exception is a fault in the program and keeps its traceback.
    """
    try:
        result = command.main(args=args, prog_name=prog_name, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PocketLLMError as error:
        click.echo(f"Error: {error.message}", err=True)
        return EXIT_USAGE if isinstance(error, ConfigurationError | UnsupportedFeatureError) else EXIT_FAILED
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has left (`| head`). Without this, the interpreter complains when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return result if isinstance(result, int) else 0
