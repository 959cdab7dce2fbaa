"""Logging of the server's process: text for a person or JSON lines for a collector, with the request's id in each line.

Every line goes to stderr. Lines never hold what people wrote, save with ``log_prompts``.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from pocketllm_server.transport.request_context import current_request

ACCESS_LOGGER = "pocketllm_server.access"
FIELDS = "fields"
"""Attribute of a log record: a mapping of what a line says to a machine, beside its message."""

_encode = msgspec.json.Encoder(enc_hook=str).encode
# Below these levels their lines say nothing about this server: asyncio warns of every client that left while it was
# answered, and at debug it shows whole callbacks.
_QUIET = {"asyncio": logging.ERROR, "hpack": logging.WARNING, "hypercorn": logging.WARNING}


def configure_logging(level: str, log_format: str) -> None:
    """Send the whole process's log to stderr in the given format, in place of what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_add_request_id)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))
    logging.captureWarnings(True)


def _add_request_id(record: logging.LogRecord) -> bool:
    request = current_request()
    record.request_id = request.request_id if request is not None else None
    return True


class TextLines(logging.Formatter):
    """``TIME LEVEL LOGGER [REQUEST ID] MESSAGE``; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", None)
        mark = f" [{request_id}]" if request_id else ""
        # A line break in a message, which a client may have a part in, must not look like a line of its own.
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        line = f"{_time(record)} {record.levelname} {record.name}{mark}: {message}"
        return "\n".join([line, *_traceback(self, record)])


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, request_id, message, then the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        request_id = getattr(record, "request_id", None)
        if request_id:
            entry["request_id"] = request_id
        entry["message"] = record.getMessage()
        entry.update(getattr(record, FIELDS, {}))
        traceback = _traceback(self, record)
        if traceback:
            entry["traceback"] = "\n".join(traceback)
        try:
            return _encode(entry).decode()
        except UnicodeEncodeError:  # half a surrogate pair, as in an undecodable path
            return json.dumps(entry, default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return parts
