"""The grammar library's C functions, for engines that follow constraints in native code.

The wheel's shared library exports them beside its Python module. What they do is in the library's header; what matters
here is that they are those of the version this project was tested with.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Final

_TESTED_VERSION: Final = b"llguidance@1.9."

FUNCTIONS: Final = (
    "llg_new_tokenizer_v2",
    "llg_free_tokenizer",
    "llg_constraint_init_set_defaults",
    "llg_new_matcher",
    "llg_clone_matcher",
    "llg_free_matcher",
    "llg_matcher_compute_mask_into",
    "llg_matcher_validate_tokens",
    "llg_matcher_consume_tokens",
    "llg_matcher_rollback",
    "llg_matcher_is_accepting",
    "llg_matcher_is_stopped",
    "llg_matcher_is_error",
    "llg_matcher_get_error",
)


@functools.cache
def grammar_functions() -> dict[str, int] | None:
    """The address of each of :data:`FUNCTIONS`; None when the installed library is of another version or was built
    without them. They stay valid as long as the process."""
    import llguidance._lib

    try:
        library = ctypes.CDLL(llguidance._lib.__file__)
        version = library.llg_get_version
        version.restype = ctypes.c_char_p
        if not version().startswith(_TESTED_VERSION):
            return None
        return {name: _address(getattr(library, name)) for name in FUNCTIONS}
    except (OSError, AttributeError):
        return None


def _address(function: object) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]  # a function pointer, as cast takes
    assert address is not None
    return address
