"""The conformance kit for backend authors.

Run it as ``pytest --pyargs pocketllm.testing --pocketllm-backend=NAME``; ``docs/writing-a-backend.md`` tells how to
read what it says. :func:`check_stream` judges recorded events and is of use alone. :mod:`pocketllm.testing.rules` lists
every rule; renaming a rule or a case is a breaking change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pocketllm.testing.rules import KIT_VERSION as KIT_VERSION
    from pocketllm.testing.rules import RULES as RULES
    from pocketllm.testing.rules import Violation as Violation
    from pocketllm.testing.stream_rules import check_stream as check_stream

__all__ = ["KIT_VERSION", "RULES", "Violation", "check_stream"]


def __getattr__(name: str) -> Any:
    # Lazy, because pytest imports this package for every run in an environment that has the kit installed.
    if name == "check_stream":
        from pocketllm.testing.stream_rules import check_stream

        return check_stream
    if name in __all__:
        from pocketllm.testing import rules

        return getattr(rules, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
