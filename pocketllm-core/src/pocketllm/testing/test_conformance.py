"""The module that ``pytest --pyargs pocketllm.testing --pocketllm-backend=NAME`` collects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pocketllm.testing.case import Case
    from pocketllm.testing.kit_plugin import KitPlugin


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not metafunc.config.getoption("pocketllm_backend"):
        raise pytest.UsageError("Name the backend that the kit is to judge: --pocketllm-backend=NAME.")


def test_rule(kit: KitPlugin, kit_placement: str, kit_case: Case) -> None:
    """One case in one placement; its id is placement-rule/case."""
    kit.judge(kit_case, kit_placement)
