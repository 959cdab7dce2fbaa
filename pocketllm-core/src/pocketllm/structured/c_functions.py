"""A matcher as a table of C functions, for engines that sample in native code.

The table has one layout for all matchers (:class:`MatcherFunctions`). Here its functions call a :class:`TokenMatcher`
in Python: they may be called from any thread, and hold the interpreter's lock while they run.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from dataclasses import dataclass, field

from pocketllm.structured.after_text import TokenMatcher

_FAILED = 1

_FillMask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_Accept = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32)
_Rollback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_IsDone = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
# The address of a text; a c_char_p as a result would leave its memory to nobody.
_Error = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class MatcherFunctions(ctypes.Structure):
    """The table. Every function is given the object that goes with it.

    ``fill_mask(object, words, num_words)`` writes 32-bit words, bit i of word w for token 32 w + i; ``accept(object,
    token)`` and ``rollback(object, num_tokens)`` move. These return 0 on success; otherwise ``error(object)`` is the
    reason, valid until the next call. ``is_done(object)`` is 1 when nothing may follow but a stop id. One thread at a
    time per object. ``release(object)`` comes last and exactly once.
    """

    _fields_ = (
        ("fill_mask", _FillMask),
        ("accept", _Accept),
        ("rollback", _Rollback),
        ("is_done", _IsDone),
        ("error", _Error),
        ("release", _Release),
    )


@dataclass
class _Held:
    matcher: TokenMatcher
    error: ctypes.Array[ctypes.c_char] = field(default_factory=lambda: ctypes.create_string_buffer(b""))


_held: dict[int, _Held] = {}
_keys = itertools.count(1)
_lock = threading.Lock()


def matcher_pointers(matcher: TokenMatcher) -> tuple[int, int]:
    """Hand ``matcher`` over to native code: the addresses of its table and of its object.

    The engine that takes them calls ``release`` exactly once; until then the matcher stays alive.
    """
    with _lock:
        key = next(_keys)
        _held[key] = _Held(matcher)
    return ctypes.addressof(_TABLE), key


def num_held_matchers() -> int:
    """Matchers that native code holds now."""
    return len(_held)


def _fill_mask(key: int, address: int, num_words: int) -> int:
    held = _held[key]
    try:
        held.matcher.fill_mask(address, num_words)
    except Exception as error:  # noqa: BLE001 - nothing may pass into native code; the engine ends the one sequence
        return _keep(held, error)
    return 0


def _accept(key: int, token: int) -> int:
    held = _held[key]
    try:
        if held.matcher.accept(token):
            return 0
        held.error = ctypes.create_string_buffer(f"The constraint does not allow token {token} here.".encode())
    except Exception as error:  # noqa: BLE001 - as above
        return _keep(held, error)
    return _FAILED


def _rollback(key: int, num_tokens: int) -> int:
    held = _held[key]
    try:
        held.matcher.rollback(num_tokens)
    except Exception as error:  # noqa: BLE001 - as above
        return _keep(held, error)
    return 0


def _is_done(key: int) -> int:
    held = _held[key]
    try:
        return int(held.matcher.is_done)
    except Exception as error:  # noqa: BLE001 - as above; the next mask fails too and says why
        _keep(held, error)
        return 0


def _error(key: int) -> int:
    return ctypes.addressof(_held[key].error)


def _release(key: int) -> None:
    with _lock:
        del _held[key]


def _keep(held: _Held, error: Exception) -> int:
    text = str(error) or type(error).__name__
    held.error = ctypes.create_string_buffer(text.encode("utf-8", "replace"))
    return _FAILED


_TABLE = MatcherFunctions(
    _FillMask(_fill_mask),
    _Accept(_accept),
    _Rollback(_rollback),
    _IsDone(_is_done),
    _Error(_error),
    _Release(_release),
)
