"""What a case is, and the list of all of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from pocketllm.testing.rig import Rig

MODULES = ("streams", "cancellation", "concurrency", "sampling", "features", "requests", "limits", "lifecycle", "host")

CaseFunction = Callable[[Rig], None]


@dataclass(frozen=True)
class Case:
    """``rule/name`` is the id authors see. ``run`` returns, or raises RuleBroken."""

    rule: str
    name: str
    run: CaseFunction

    @property
    def id(self) -> str:
        return f"{self.rule}/{self.name}"


_cases: dict[str, Case] = {}


def case(rule: str) -> Callable[[CaseFunction], CaseFunction]:
    """Register a function as a case of ``rule``; its name is the case's name."""

    def register(function: CaseFunction) -> CaseFunction:
        new = Case(rule, function.__name__, function)
        _cases[new.id] = new
        return function

    return register


def all_cases() -> dict[str, Case]:
    """Every case by id, in the order they are run."""
    for module in MODULES:
        importlib.import_module(f"pocketllm.testing.cases.{module}")
    return _cases
