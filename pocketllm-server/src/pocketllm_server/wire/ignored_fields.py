"""The response header that names the fields of a request which nobody documents and nobody read."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from pocketllm_server.wire.errors import Headers

HEADER = b"x-pocketllm-ignored-fields"

_MAX_NAMES = 32
_MAX_NAME_CHARS = 64


def ignored_fields_header(names: Sequence[str]) -> Headers:
    """Each name once, joined by commas; characters that a header or the list cannot carry are percent-encoded."""
    if not names:
        return ()
    unique = list(dict.fromkeys(names))
    told = [quote(name[:_MAX_NAME_CHARS], safe="-_.~[]", errors="replace") for name in unique[:_MAX_NAMES]]
    if len(unique) > _MAX_NAMES:
        told.append(f"and {len(unique) - _MAX_NAMES} more")
    return ((HEADER, ", ".join(told).encode("ascii")),)
