"""The JSON report: what was judged, by which kit, and the outcome of every case."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from pocketllm.testing.rules import KIT_VERSION, Violation
from pocketllm.types import CONTRACT_VERSION, Capabilities


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """``outcome``: passed, failed, expected-failure, or unexpected-pass (which fails the run)."""

    case: str
    rule: str
    placement: str
    outcome: str
    duration_s: float
    violations: list[Violation] = []
    reason: str = ""


class KitReport(msgspec.Struct, kw_only=True):
    """Grows while the kit runs; :meth:`write` at its end."""

    backend: str
    model: str
    backend_options: dict[str, Any] = {}
    kit_version: str = KIT_VERSION
    contract_version: tuple[int, int] = CONTRACT_VERSION
    core_version: str = ""
    capabilities: Capabilities | None = None
    cases: list[CaseReport] = []

    def __post_init__(self) -> None:
        try:
            self.core_version = version("pocketllm-core")
        except PackageNotFoundError:
            self.core_version = "unknown"  # imported from a source tree that is not installed

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for report in self.cases:
            counts[report.outcome] = counts.get(report.outcome, 0) + 1
        return counts

    def write(self, path: Path) -> None:
        content = {"summary": self.counts(), **msgspec.to_builtins(self)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
