"""What pytest loads in every run: the kit's options. The kit itself is loaded when an option names a backend.

The options cannot live in a conftest of the package: with ``--pyargs`` pytest reads that too late to know them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pocketllm", "conformance kit for PocketLLM backends")
    group.addoption(
        "--pocketllm-backend",
        metavar="NAME",
        help="judge this backend: an installed one's name, or where its hooks are (module:attribute or module:)",
    )
    group.addoption(
        "--pocketllm-model",
        metavar="PATH",
        help="checkpoint to open, or an installed model's name (default: a tiny one that the kit writes)",
    )
    group.addoption(
        "--pocketllm-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one backend option, value as JSON where it is JSON; may be repeated",
    )
    group.addoption(
        "--pocketllm-arg",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="one field of EngineArgs, such as device or max_batch_size; may be repeated",
    )
    group.addoption(
        "--pocketllm-placement",
        choices=("thread", "child", "both"),
        default="both",
        help="where the engine lives while it is judged (default: both, one after the other)",
    )
    group.addoption(
        "--pocketllm-deadline",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="for one case; a quarter of it for one stream (default: 60)",
    )
    group.addoption("--pocketllm-report", metavar="PATH", help="write a JSON report of every case to this file")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("pocketllm_backend"):
        from pocketllm.testing.kit_plugin import KitPlugin

        config.pluginmanager.register(KitPlugin(config), "pocketllm-kit-session")
