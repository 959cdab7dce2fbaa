"""Plain output that reads well on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


def table(head: Sequence[str], entries: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces between, no trailing blanks."""
    lines = [head, *entries]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def json_text(value: Any) -> str:
    """``value`` (Structs included) as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
