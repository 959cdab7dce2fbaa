"""The program ``pocketllm``: one file per command, each imported only when it runs."""

from __future__ import annotations


def main(args: list[str] | None = None) -> int:
    """Run ``pocketllm`` with ``args`` (default: the command line's); returns the exit code."""
    from pocketllm.cli.group import program
    from pocketllm.cli.program import run_program

    return run_program(program, prog_name="pocketllm", args=args)
