"""How a constraint is refused: one error class, one place in the schema."""

from __future__ import annotations

from pocketllm.errors import ConfigurationError


def pointer_to(parent: str, *steps: str | int) -> str:
    """The JSON pointer (RFC 6901) of a place below ``parent``; the document itself is the empty pointer."""
    return parent + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


class SchemaRefusedError(ConfigurationError):
    """A JSON schema cannot be enforced as it stands.

    Args:
        pointer: the place at fault, as a JSON pointer into the schema as it was sent.
        reason: what is wrong there and the next step; follows "the schema at ``pointer``".
        param: the request field that carried the schema.
    """

    def __init__(self, pointer: str, reason: str, *, param: str) -> None:
        super().__init__(f"{param}: the schema at {pointer or '# (its root)'} {reason}", param=param)
        self.pointer = pointer
        self.reason = reason
