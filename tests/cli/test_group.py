"""The group lists commands from data: help imports nothing heavy and survives broken plugins."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.programs import environment, pocketllm
from tests.plugins.fake_distributions import PLUGINS, install

HEAVY = "torch numpy triton jinja2 tokenizers rich llguidance starlette hypercorn transformers"

_COMMANDS = """
from pocketllm.hookspecs import hookimpl
from pocketllm.types import CommandPart

@hookimpl
def pocketllm_commands():
    return [CommandPart(name={name!r}, target={target!r}, help="Show steps.")]
"""

_DANCE = """
import click

@click.command()
def dance():
    click.echo("one two three")
"""


def dancing(site: Path, *, name: str = "dance", target: str = "steps:dance") -> None:
    install(site, "dancing", _COMMANDS.format(name=name, target=target), group=PLUGINS)
    (site / "steps.py").write_text(_DANCE)


@pytest.mark.parametrize("args", [["--help"], [], ["plugins", "--help"], ["serve", "--help"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\nfrom pocketllm.cli import main\nmain(sys.argv[1:])\n"
        f"heavy = set({HEAVY!r}.split()) & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: pocketllm" in done.stdout + done.stderr


def test_help_lists_every_command() -> None:
    done = pocketllm("--help")
    assert done.returncode == 0
    for name in ("run", "chat", "plugins", "doctor", "capabilities", "serve"):
        assert f"\n  {name} " in done.stdout


def test_the_version_is_that_of_core() -> None:
    assert pocketllm("--version").stdout.split() == ["pocketllm", importlib.metadata.version("pocketllm-core")]


def test_a_plugin_may_bring_a_command(tmp_path: Path) -> None:
    dancing(tmp_path)
    assert "Show steps." in pocketllm("--help", site=tmp_path).stdout
    assert pocketllm("dance", site=tmp_path).stdout == "one two three\n"


def test_a_plugins_command_that_cannot_be_imported(tmp_path: Path) -> None:
    dancing(tmp_path, target="no_such_module:dance")
    assert "dance" in pocketllm("--help", site=tmp_path).stdout
    done = pocketllm("dance", site=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: The command 'dance' cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'\n"
    )


def test_an_own_command_cannot_be_taken(tmp_path: Path) -> None:
    dancing(tmp_path, name="plugins")
    done = pocketllm("plugins", site=tmp_path)
    assert done.returncode == 0
    assert "NAME" in done.stdout
    listed = pocketllm("--help", site=tmp_path)
    assert "Show steps." not in listed.stdout
    assert "Plugin 'dancing' (dancing 1.0) is broken" in listed.stderr


def test_broken_plugins_do_not_stop_help(tmp_path: Path) -> None:
    install(tmp_path, "wreck", "import sys; sys.exit(4)", group=PLUGINS)
    done = pocketllm("--help", site=tmp_path)
    assert done.returncode == 0
    assert "capabilities" in done.stdout
    assert "Plugin 'wreck' (wreck 1.0) is broken: SystemExit: 4. See `pocketllm plugins`." in done.stderr


def test_an_unknown_command_leads_to_the_nearest() -> None:
    done = pocketllm("pluginz")
    assert done.returncode == 2
    assert "There is no command 'pluginz'. Did you mean 'plugins'?" in done.stderr


def test_a_command_of_another_distribution_says_what_to_install() -> None:
    done = pocketllm("serve", POCKETLLM_PLUGINS="smollm2")
    assert done.returncode == 2
    assert "pip install 'pocketllm-core[server]'" in done.stderr
    assert "Plugin 'server', which may bring it, is disabled by POCKETLLM_PLUGINS." in done.stderr
