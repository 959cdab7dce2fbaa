"""API keys from a file."""

from __future__ import annotations

from pathlib import Path

from pocketllm.errors import ConfigurationError


def read_key_file(path: str) -> tuple[str, ...]:
    """The keys of a file: one a line; empty lines and lines that begin with # are left out.

    Raises:
        ConfigurationError: the file cannot be read or holds no key.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(
            f"The file of API keys {path!r} cannot be read: {reason}.", param="api_key_file"
        ) from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        # An empty file would open the server to everybody, which is not what its owner meant.
        raise ConfigurationError(f"The file of API keys {path!r} holds no key: write one a line.", param="api_key_file")
    return keys
