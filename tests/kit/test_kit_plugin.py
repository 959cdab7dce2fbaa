"""The kit as authors run it: a pytest command with a backend's name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pocketllm.errors import ConfigurationError
from pocketllm.testing import KIT_VERSION
from pocketllm.testing.case import all_cases
from pocketllm.testing.expected_failures import TABLE, read_expected_failures
from pocketllm.testing.rules import RULES
from pocketllm.testing.settings import parse_pairs
from pocketllm.types import CONTRACT_VERSION

PENALTIES = "F4/penalties_act_or_are_refused"


def run_kit(folder: Path, backend: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the kit the way an author does, in a project folder of its own."""
    repository = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", "--pyargs"]
    command += ["pocketllm.testing", f"--pocketllm-backend={backend}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    (folder / "pyproject.toml").touch()
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("capability_set", ["everything", "guide", "engine-wide"])
def test_echo_passes_with_no_exception(tmp_path: Path, capability_set: str) -> None:
    """Every case, both placements, each capability set; and the report says so."""
    report_path = tmp_path / "report.json"
    option = f"--pocketllm-option=capability_set={capability_set}"
    done = run_kit(tmp_path, "echo", option, f"--pocketllm-report={report_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(report_path.read_text())
    assert report["kit_version"] == KIT_VERSION
    assert tuple(report["contract_version"]) == CONTRACT_VERSION
    assert report["capabilities"]["details"]["capability_set"] == capability_set
    assert report["summary"] == {"passed": 2 * len(all_cases())}
    judged = {(case["placement"], case["case"]) for case in report["cases"]}
    assert judged == {(placement, case) for placement in ("thread", "child") for case in all_cases()}


def test_a_failure_names_the_rule_and_the_report_keeps_it(tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    backend = "tests.kit.broken_features:IgnoresMinTokens"
    done = run_kit(
        tmp_path, backend, "--pocketllm-placement=thread", "-k", "F6 or F5", f"--pocketllm-report={report_path}"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "[F6] min_tokens = 1 ended after 1 tokens" in done.stdout
    assert RULES["F6"] in done.stdout
    outcomes = {case["rule"]: case["outcome"] for case in json.loads(report_path.read_text())["cases"]}
    assert outcomes == {"F5": "passed", "F6": "failed"}


def test_an_expected_failure_is_strict(tmp_path: Path) -> None:
    text = f'[{TABLE}]\nF5 = "not yet"\n"F6/min_tokens_acts_or_is_refused" = "no such counter"\n'
    (tmp_path / "pyproject.toml").write_text(text)
    done = run_kit(
        tmp_path, "tests.kit.broken_features:IgnoresMinTokens", "--pocketllm-placement=thread", "-k", "F6 or F5", "-rx"
    )
    assert done.returncode == 1
    assert "no such counter" in done.stdout
    assert "1 failed, " in done.stdout
    assert "1 xfailed" in done.stdout
    assert "F5/logit_bias_acts_or_is_refused passes now: remove it" in done.stdout


@pytest.mark.parametrize("rule", ["S1", "C1", "R1", "C1/at_every_token"])
def test_streams_cancellation_and_leaks_cannot_be_excepted(tmp_path: Path, rule: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[{TABLE}]\n"{rule}" = "later"\n')
    cases = [*all_cases(), "R1/a_case_of_its_own"]
    with pytest.raises(ConfigurationError, match="cannot be excepted"):
        read_expected_failures(tmp_path / "pyproject.toml", cases)


def test_an_expected_failure_does_not_excuse_a_broken_stream(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[{TABLE}]\nU1 = "counters come later"\n')
    done = run_kit(tmp_path, "tests.kit.broken:EndsTwice", "--pocketllm-placement=thread", "-k", "counters_agree")
    assert done.returncode == 1
    assert "[S1] 2 final events instead of one" in done.stdout


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('F99 = "x"', "neither a rule nor a case"),
        ('"F4/no_such_case" = "x"', "neither a rule nor a case"),
        ('F4 = " "', "has no reason"),
        ("F4 = 1", "has no reason"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, table: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[{TABLE}]\n{table}\n")
    with pytest.raises(ConfigurationError, match=message):
        read_expected_failures(tmp_path / "pyproject.toml", all_cases())


def test_a_rule_stands_for_all_its_cases(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[{TABLE}]\nF4 = "none"\n')
    assert read_expected_failures(tmp_path / "pyproject.toml", all_cases()) == {PENALTIES: "none"}
    assert read_expected_failures(tmp_path / "absent.toml", all_cases()) == {}


def test_usage_errors_are_plain(tmp_path: Path) -> None:
    unknown = run_kit(tmp_path, "tests.kit.broken:NoSuchThing")
    assert unknown.returncode == 4
    assert "tests.kit.broken:NoSuchThing cannot be imported" in unknown.stderr
    missing = run_kit(tmp_path, "", "-q")
    assert missing.returncode != 0
    assert "--pocketllm-backend=NAME" in missing.stdout + missing.stderr


def test_a_backend_that_is_not_installed_fails_with_its_reason(tmp_path: Path) -> None:
    done = run_kit(tmp_path, "nonesuch", "--pocketllm-placement=thread", "-k", "S4")
    assert done.returncode == 1
    assert "Backend 'nonesuch' is not installed" in done.stdout


def test_pairs_are_json_where_they_can_be() -> None:
    pairs = ["a=1", "b=[1, 2]", "c=text", "d=x=y", "e="]
    assert parse_pairs("--x", pairs) == {"a": 1, "b": [1, 2], "c": "text", "d": "x=y", "e": ""}
    with pytest.raises(ConfigurationError, match="KEY=VALUE"):
        parse_pairs("--x", ["novalue"])


def test_every_case_has_a_known_rule_and_says_what_it_does() -> None:
    for case in all_cases().values():
        assert case.rule in RULES
        assert case.run.__doc__, case.id
        assert case.id == f"{case.rule}/{case.run.__name__}"
    # These are judged after every case; no case is about them alone.
    judged_always = {"S3", "S8", "S9", "S10", "R1", "R2", "R3", "R4", "L5"}
    assert set(RULES) - {case.rule for case in all_cases().values()} == judged_always
