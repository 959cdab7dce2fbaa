"""Every error leaves in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from pocketllm.errors import PocketLLMError

# The status says it all for these: OpenAI's own bodies, and the guide's, carry a null code.
_PLAIN_CODES = {"invalid_value", "unsupported_feature"}
_RETRY_AFTER_S = {429: 1, 503: 5}

Headers = tuple[tuple[bytes, bytes], ...]


class HTTPError(Exception):
    """An error of the HTTP layer itself: no such route, wrong method, a body that is too large."""

    def __init__(self, status: int, message: str, *, code: str | None = None, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = headers


def error_object(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, object]:
    """The value of the ``error`` key."""
    return {"message": message, "type": _type(status), "param": param, "code": code}


def describe(error: PocketLLMError | HTTPError) -> tuple[int, dict[str, object], Headers]:
    """(status, value of the ``error`` key, extra headers) of an error that was raised on purpose."""
    if isinstance(error, HTTPError):
        return error.status, error_object(error.status, error.message, code=error.code), error.headers
    code = None if error.code in _PLAIN_CODES else error.code
    retry_s = _RETRY_AFTER_S.get(error.status)
    headers: Headers = ((b"retry-after", str(retry_s).encode()),) if retry_s else ()
    return error.status, error_object(error.status, error.message, param=error.param, code=code), headers


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    if status == 499:
        return "request_cancelled"
    return "invalid_request_error" if status < 500 else "server_error"
