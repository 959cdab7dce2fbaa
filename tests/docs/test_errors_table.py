"""The table of errors in docs/api.md is the error tree."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from pocketllm import errors
from tests.docs.pages import text


def test_every_error_stands_in_the_table_with_its_status() -> None:
    section = text(Path("docs/api.md")).split("\n### Errors\n", 1)[1].split("\n## ", 1)[0]
    shown = {
        name: int(row[2])
        for row in re.findall(r"^\| (`.+`) \| (.+) \| (\d+) \|$", section, flags=re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row[0])
    }
    real = {
        name: kind.status
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.PocketLLMError) and kind is not errors.PocketLLMError
    }
    assert shown == real
