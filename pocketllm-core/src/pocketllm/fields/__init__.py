"""What a request may say and what an engine has to declare for it: the field table and the checks that follow from it.

``table`` holds the rows, ``check`` judges a request body, ``requests`` a :class:`pocketllm.GenerationRequest`.
"""

from __future__ import annotations

from pocketllm.fields.check import (
    check_fields,
    describe,
    rows,
    shown,
    supported_fields,
    unknown_field,
    unsupported,
)
from pocketllm.fields.table import BOTH, CHAT, COMPLETIONS, FIELDS, NEVER, FieldRow

__all__ = [
    "BOTH", "CHAT", "COMPLETIONS", "FIELDS", "NEVER", "FieldRow", "check_fields", "describe", "rows", "shown",
    "supported_fields", "unknown_field", "unsupported",
]  # fmt: skip
