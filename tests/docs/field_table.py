"""The table of request fields in docs/api.md, made from the field table itself."""

from __future__ import annotations

from pocketllm.fields import FIELDS, describe


def table() -> str:
    """The rows in the table's own order, as Markdown."""
    lines = ["| field | endpoints | served | |", "|---|---|---|---|"]
    for row in FIELDS:
        name, endpoints, served, doc = (cell.replace("|", "\\|").replace("<", "&lt;") for cell in describe(row))
        lines.append(f"| `{name}` | {endpoints} | {served} | {doc} |")
    return "\n".join(lines)
