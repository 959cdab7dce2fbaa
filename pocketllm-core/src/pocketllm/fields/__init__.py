"""What a request may say, and what an engine has to declare for it.

``policy`` is the one table of capabilities. From it come the rows of the fields (``table``), the judgement of a request
body (``check``) and that of a finished :class:`pocketllm.GenerationRequest` (``requests``).
"""

from __future__ import annotations

from pocketllm.errors import shown
from pocketllm.fields.check import (
    check_fields,
    describe,
    rows,
    supported_fields,
    unknown_field,
    unsupported,
)
from pocketllm.fields.policy import NEVER
from pocketllm.fields.table import BOTH, CHAT, COMPLETIONS, FIELDS, FieldRow

__all__ = [
    "BOTH", "CHAT", "COMPLETIONS", "FIELDS", "NEVER", "FieldRow", "check_fields", "describe", "rows", "shown",
    "supported_fields", "unknown_field", "unsupported",
]  # fmt: skip
