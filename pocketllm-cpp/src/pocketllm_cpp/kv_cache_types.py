"""How callers may name the types a key/value cache can have."""

from __future__ import annotations

from pocketllm.errors import UnsupportedFeatureError

_NATIVE_NAMES = {
    "auto": "F16",
    "f16": "F16",
    "fp16": "F16",
    "float16": "F16",
    "q8_0": "Q8_0",
    "int8": "Q8_0",
    "int8pertokenhead": "Q8_0",
    "f32": "F32",
    "fp32": "F32",
    "float32": "F32",
}


def kv_type(name: str) -> str:
    """The native name of a cache type; upper and lower case are the same.

    Raises:
        UnsupportedFeatureError: this build has no cache of that type.
    """
    found = _NATIVE_NAMES.get(name.lower())
    if found is None:
        raise UnsupportedFeatureError(
            f"kv_cache_dtype = {name!r}: its cache is 'f16', 'q8_0' or 'f32'. Give one of them, or leave it 'auto'.",
            param="kv_cache_dtype",
        )
    return found
