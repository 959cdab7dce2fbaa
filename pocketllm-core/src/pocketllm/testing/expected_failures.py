"""An author's own list of what their backend does not pass yet: strict, with a reason, and never for every rule."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from pocketllm.errors import ConfigurationError
from pocketllm.testing.rules import RULES, can_be_waived

TABLE = "tool.pocketllm.kit.expected-failures"


def read_expected_failures(pyproject: Path, case_ids: Iterable[str]) -> dict[str, str]:
    """Case id to reason, from ``[tool.pocketllm.kit.expected-failures]`` of the author's pyproject.toml.

    A key is a rule ("F4") or one of its cases ("F4/penalties_act_or_are_refused").

    Raises:
        ConfigurationError: an unknown key, an empty reason, or a rule of which no exception is taken.
    """
    if not pyproject.is_file():
        return {}
    with pyproject.open("rb") as file:
        table: object = tomllib.load(file)
    for part in TABLE.split("."):
        table = table.get(part, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise ConfigurationError(f"[{TABLE}] in {pyproject.name} is not a table of reasons.", param=TABLE)
    known = list(case_ids)
    expected: dict[str, str] = {}
    for key, reason in table.items():
        rule = key.partition("/")[0]
        matching = [case_id for case_id in known if case_id == key or case_id.partition("/")[0] == key]
        if rule not in RULES or not matching:
            raise ConfigurationError(f"{key!r} in [{TABLE}] is neither a rule nor a case of the kit.", param=key)
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigurationError(f"{key!r} in [{TABLE}] has no reason: say why the backend fails it.", param=key)
        if not can_be_waived(rule):
            raise ConfigurationError(
                f"{key!r} in [{TABLE}] cannot be excepted: stream, cancellation and leak rules protect every other "
                "user of the process. Mend the backend.",
                param=key,
            )
        expected.update(dict.fromkeys(matching, reason))
    return expected
