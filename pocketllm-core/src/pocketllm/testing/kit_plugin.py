"""The kit in pytest: one test for each case and placement, run in a process that may be killed."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pocketllm.errors import PocketLLMError
from pocketllm.testing.case import Case, all_cases
from pocketllm.testing.expected_failures import TABLE, read_expected_failures
from pocketllm.testing.report import CaseReport, KitReport
from pocketllm.testing.rules import KIT_VERSION, RULES, Violation, can_be_waived
from pocketllm.testing.settings import PLACEMENTS, KitSettings, parse_pairs
from pocketllm.testing.toy_checkpoint import write_toy_checkpoint
from pocketllm.testing.worker_link import WorkerLink
from pocketllm.types import CONTRACT_VERSION


class KitPlugin:
    """One run of the kit: its settings, its engines' processes, its report."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.getoption
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._links: dict[str, WorkerLink] = {}
        self.cases = all_cases()
        asked = option("pocketllm_placement")
        self.placements = PLACEMENTS if asked == "both" else (asked,)
        path = option("pocketllm_report")
        self._report_path = Path(path) if path else None
        try:
            self.settings = self._settings(config)
            self.expected = read_expected_failures(config.rootpath / "pyproject.toml", self.cases)
        except PocketLLMError as error:
            raise pytest.UsageError(error.message) from error
        self.report = KitReport(
            backend=option("pocketllm_backend"),
            model=option("pocketllm_model") or "the kit's own",
            backend_options=self.settings.backend_options,
            cases=[],
        )

    def _settings(self, config: pytest.Config) -> KitSettings:
        option = config.getoption
        backend, target = option("pocketllm_backend"), None
        if ":" in backend:
            from pocketllm.testing.target import card_of

            backend, target = card_of(backend).name, backend.rstrip(":")
        return KitSettings(
            backend=backend,
            target=target,
            model=self._model(option("pocketllm_model")),
            backend_options=parse_pairs("--pocketllm-option", option("pocketllm_option")),
            engine_args=parse_pairs("--pocketllm-arg", option("pocketllm_arg")),
            deadline_s=option("pocketllm_deadline"),
        )

    def _model(self, name: str | None) -> str:
        if name is not None:
            from pocketllm.model_sources.resolve import resolve_model
            from pocketllm.plugins.registry import get_registry

            return resolve_model(get_registry(), name).path
        self._scratch = tempfile.TemporaryDirectory(prefix="pocketllm-kit-")
        return str(write_toy_checkpoint(Path(self._scratch.name) / "toy"))

    # ---------------------------------------------------------------------------------------------------- pytest

    def pytest_report_header(self) -> list[str]:
        contract = ".".join(map(str, CONTRACT_VERSION))
        return [
            f"pocketllm kit {KIT_VERSION}, contract {contract}: backend {self.report.backend} on {self.report.model}"
        ]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if {"kit_case", "kit_placement"} <= set(metafunc.fixturenames):
            # Placement outermost: one engine at a time is open.
            pairs = [(place, case) for place in self.placements for case in self.cases.values()]
            ids = [f"{placement}-{case.id}" for placement, case in pairs]
            metafunc.parametrize(("kit_placement", "kit_case"), pairs, ids=ids)

    @pytest.fixture
    def kit(self) -> KitPlugin:
        return self

    def pytest_sessionfinish(self) -> None:
        self.stop()
        if self._report_path is not None and self.report.cases:
            self.report.write(self._report_path)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.report.cases:
            counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(self.report.counts().items()))
            written = f"; report in {self._report_path}" if self._report_path else ""
            terminalreporter.write_line(f"pocketllm kit {KIT_VERSION} on {self.report.backend}: {counts}{written}")

    # ------------------------------------------------------------------------------------------------------- cases

    def judge(self, case: Case, placement: str) -> None:
        """Run one case in one placement; fails or expects the failure as pytest does."""
        begin = time.monotonic()
        link = self._link(placement)
        violations, text = link.run(case.id, case.rule)
        reason = self.expected.get(case.id, "")
        outcome = _outcome(violations, reason)
        self.report.capabilities = link.capabilities or self.report.capabilities
        entry = CaseReport(
            case=case.id,
            rule=case.rule,
            placement=placement,
            outcome=outcome,
            duration_s=round(time.monotonic() - begin, 3),
            violations=violations,
            reason=reason,
        )
        self.report.cases.append(entry)
        if outcome == "failed":
            pytest.fail(_explain(case, violations, text, reason), pytrace=False)
        if outcome == "unexpected-pass":
            pytest.fail(f"{case.id} passes now: remove it from [{TABLE}] ({reason}).", pytrace=False)
        if outcome == "expected-failure":
            pytest.xfail(reason)

    def _link(self, placement: str) -> WorkerLink:
        for other in [name for name in self._links if name != placement]:
            self._links.pop(other).stop()
        if placement not in self._links:
            self._links[placement] = WorkerLink(_with_placement(self.settings, placement))
        return self._links[placement]

    def stop(self) -> None:
        for link in self._links.values():
            link.stop()
        self._links = {}
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None


def _with_placement(settings: KitSettings, placement: str) -> KitSettings:
    return msgspec.structs.replace(settings, placement=placement)


def _outcome(violations: list[Violation], reason: str) -> str:
    if not violations:
        return "unexpected-pass" if reason else "passed"
    excused = bool(reason) and all(can_be_waived(violation.rule) for violation in violations)
    return "expected-failure" if excused else "failed"


def _explain(case: Case, violations: list[Violation], text: str, reason: str) -> str:
    lines = [f"{case.id}: {(case.run.__doc__ or '').strip()}"]
    for violation in violations:
        lines += [f"  {violation}", f"      rule {violation.rule}: {RULES[violation.rule]}"]
    if reason:
        lines.append("  The expected failure does not excuse stream, cancellation and leak rules.")
    return "\n".join(lines + ([text.strip()] if text.strip() else []))
