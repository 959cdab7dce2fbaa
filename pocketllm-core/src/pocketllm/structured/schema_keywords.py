"""The keywords of JSON Schema that are enforced, those that refuse nothing, and the limits of what is accepted."""

from __future__ import annotations

MAX_SCHEMA_BYTES = 512 * 1024
MAX_DEPTH = 48
MAX_SCHEMAS = 2_000
MAX_VALUES = 20_000
"""Values in all enums and constants together."""
MAX_ITEMS = 5_000
MAX_LENGTH = 100_000
MAX_CONSTANT_CHARS = 10_000
MAX_PROPERTIES = 2_000
MAX_PATTERN_PROPERTIES = 48
"""Of all objects together: the matcher compares each two."""
MAX_EXACT_INTEGER = 2**53
"""The matcher computes bounds in binary64."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "example", "examples", "$comment", "deprecated", "readOnly", "writeOnly"),
        *("discriminator", "$anchor", "$defs", "definitions"),
    }
)
"""Keywords that refuse no document. Definitions are looked at where they are referred to."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "propertyNames": (True, {}),
    "nullable": (False,),
    "minContains": (0,),
    "patternProperties": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
}
"""Values that refuse nothing, of keywords that are otherwise not enforced or need no rule."""

COUNTS = {
    "minLength": MAX_CONSTANT_CHARS,
    "maxLength": MAX_LENGTH,
    "minItems": MAX_ITEMS,
    "maxItems": MAX_ITEMS,
    "minProperties": MAX_PROPERTIES,
    "maxProperties": MAX_PROPERTIES,
}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
APPLICATORS = ("allOf", "anyOf", "oneOf")
ENFORCED = (
    *("type", "enum", "const", "pattern", "format", *COUNTS, *BOUNDS),
    *("properties", "patternProperties", "additionalProperties", "required"),
    *("items", "prefixItems", "additionalItems", *APPLICATORS, "$ref"),
)
