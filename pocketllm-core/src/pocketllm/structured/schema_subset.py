"""JSON schemas, cut down to what the matcher enforces.

A schema is rewritten into a small dialect (2020-12 without identifiers, annotations and remote references), key by key.
A keyword that is not in :mod:`~pocketllm.structured.schema_keywords` is refused with its JSON pointer: nothing is
dropped that could have refused a document. The rewritten text is the only schema that the matcher sees, so what the
matcher would ignore or misread cannot reach it; each rule here that looks stricter than the standard guards against
such a case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from pocketllm.errors import ConfigurationError, shown
from pocketllm.structured.pattern_dialect import is_unwritable, shared_pattern
from pocketllm.structured.refusal import SchemaRefusedError, pointer_to
from pocketllm.structured.schema_keywords import (
    ANNOTATIONS,
    APPLICATORS,
    BOUNDS,
    COUNTS,
    ENFORCED,
    MAX_CONSTANT_CHARS,
    MAX_DEPTH,
    MAX_EXACT_INTEGER,
    MAX_PATTERN_PROPERTIES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMAS,
    MAX_VALUES,
    NEUTRAL,
    TYPES,
)
from pocketllm.structured.schema_references import References, Schema
from pocketllm.structured.string_formats import KNOWN_FORMATS, MATCHER_FORMATS, MAX_HOSTNAME_CHARS, OWN_FORMATS


class Place(msgspec.Struct, frozen=True):
    """A subschema: its JSON pointer in the original, as it was sent, and as it was rewritten."""

    pointer: str
    original: dict[str, Any]
    rewritten: dict[str, Any]


class RewrittenSchema(msgspec.Struct, frozen=True):
    """A schema in the matcher's dialect.

    Attributes:
        root: the schema; refers to ``definitions`` as ``#/$defs/NAME``.
        definitions: what references lead to.
        places: every subschema but booleans, inner ones first.
    """

    root: Schema
    definitions: dict[str, Schema]
    places: list[Place]

    def document(self, schema: Schema | None = None) -> dict[str, Any]:
        """``schema`` (by default the root) as a document of its own."""
        chosen = self.root if schema is None else schema
        body = {"anyOf": [chosen]} if isinstance(chosen, bool) else chosen
        return {**body, "$defs": self.definitions} if self.definitions else body


def read_schema(text: str, *, param: str) -> Schema:
    """Decode the JSON text of a schema.

    Raises:
        ConfigurationError: too large, not JSON, too deep, or neither an object nor a boolean.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_SCHEMA_BYTES:
        raise ConfigurationError(
            f"{param}: the schema has {size} bytes; at most {MAX_SCHEMA_BYTES} are accepted.", param=param
        )
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise ConfigurationError(f"{param}: the schema is not JSON: {error}", param=param) from None
    if not isinstance(value, dict | bool):
        raise ConfigurationError(
            f"{param}: a schema is an object or a boolean, not {type(value).__name__}.", param=param
        )
    return value


def rewrite_schema(schema: Schema, *, param: str) -> RewrittenSchema:
    """``schema`` in the matcher's dialect; the given object is left unchanged.

    Raises:
        SchemaRefusedError: a keyword or a value cannot be enforced; the error has its JSON pointer.
    """
    return _Rewriter(schema, param).run()


class _Rewriter:
    def __init__(self, document: Schema, param: str) -> None:
        self._document = document
        self._references = References(document)
        self._param = param
        self._names: dict[str, str] = {}
        self._pending: list[tuple[str, Schema]] = []
        self._definitions: dict[str, Schema] = {}
        self._places: list[Place] = []
        self._num_schemas = 0
        self._num_values = 0
        self._num_patterns = 0
        self._handlers: dict[str, Callable[[dict[str, Any], dict[str, Any], str, int], None]] = {
            "properties": self._properties,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "required": self._required,
            "items": self._items,
            "prefixItems": self._prefix_items,
            "pattern": self._pattern,
            "format": self._format,
            "type": self._type,
        }

    def run(self) -> RewrittenSchema:
        root = self._schema(self._document, "", 0)
        while self._pending:
            pointer, target = self._pending.pop()
            self._definitions[self._names[pointer]] = self._schema(target, pointer, 0)
        return RewrittenSchema(root, self._definitions, self._places)

    def _refuse(self, pointer: str, reason: str) -> SchemaRefusedError:
        return SchemaRefusedError(pointer, reason, param=self._param)

    # -- one schema -----------------------------------------------------------------------------------------------

    def _schema(self, schema: object, pointer: str, depth: int) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self._refuse(pointer, f"is {type(schema).__name__}; a schema is an object or a boolean.")
        self._num_schemas += 1
        if depth > MAX_DEPTH:
            raise self._refuse(pointer, f"is nested deeper than {MAX_DEPTH} levels; flatten it, or use $ref.")
        if self._num_schemas > MAX_SCHEMAS:
            raise self._refuse(pointer, f"comes after {MAX_SCHEMAS} subschemas; use a smaller schema.")
        self._check_keywords(schema, pointer)
        result: dict[str, Any] = {}
        # Plain keywords first, in one run: the matcher reads what stands between applicators as a schema of its own.
        for keyword, value in schema.items():
            if keyword in NEUTRAL and _is_one_of(value, NEUTRAL[keyword]):
                continue
            if keyword in self._handlers:
                self._handlers[keyword](schema, result, pointer, depth)
            elif keyword in COUNTS:
                result[keyword] = self._count(value, keyword, pointer)
        self._bounds(schema, result, pointer)
        self._check_min_properties(result, pointer)
        extra = result.pop("allOf", [])
        for keyword in ("enum", "const"):
            if keyword in schema:
                result[keyword] = self._values(schema[keyword], keyword, pointer)
        for keyword in APPLICATORS:
            if keyword in schema:
                result[keyword] = self._applicator(schema[keyword], keyword, pointer, depth)
        if extra:
            result["allOf"] = [*extra, *result.pop("allOf", [])]
        if "$ref" in schema:
            result["$ref"] = self._reference(schema["$ref"], pointer_to(pointer, "$ref"))
        self._places.append(Place(pointer, schema, result))
        return result

    def _check_keywords(self, schema: dict[str, Any], pointer: str) -> None:
        for keyword, value in schema.items():
            place = pointer_to(pointer, keyword)
            if keyword in ENFORCED or keyword in ANNOTATIONS or keyword.startswith("x-"):
                continue
            if keyword in NEUTRAL and _is_one_of(value, NEUTRAL[keyword]):
                continue
            if keyword in ("$id", "id", "$schema") and isinstance(value, str) and not pointer:
                continue
            if keyword in ("$id", "id"):
                raise self._refuse(place, "changes what references below it mean: remove it.")
            raise self._refuse(place, "uses a keyword that cannot be enforced: remove it, or check it yourself.")

    # -- scalars --------------------------------------------------------------------------------------------------

    def _type(self, schema: dict[str, Any], result: dict[str, Any], pointer: str, depth: int) -> None:
        value = schema["type"]
        names = value if isinstance(value, list) else [value]
        if not names or any(name not in TYPES for name in names):
            raise self._refuse(pointer_to(pointer, "type"), f"is neither one of {', '.join(TYPES)} nor a list of them.")
        # A number may be an integer: the union of both would be written twice.
        unique = [name for name in dict.fromkeys(names) if name != "integer" or "number" not in names]
        result["type"] = unique[0] if len(unique) == 1 else unique

    def _count(self, value: object, keyword: str, pointer: str) -> int:
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= COUNTS[keyword]:
            raise self._refuse(pointer_to(pointer, keyword), f"is not a whole number from 0 to {COUNTS[keyword]}.")
        return number

    def _bounds(self, schema: dict[str, Any], result: dict[str, Any], pointer: str) -> None:
        for keyword in BOUNDS:
            if keyword not in schema:
                continue
            value, place = schema[keyword], pointer_to(pointer, keyword)
            if isinstance(value, bool) and keyword.startswith("exclusive"):
                # Draft 4: a flag on the bound beside it.
                base = keyword.removeprefix("exclusive").lower()
                if value and base in result:
                    result[keyword] = result.pop(base)
                continue
            result[keyword] = self._number(value, place)
            if keyword == "multipleOf" and value <= 0:
                raise self._refuse(place, "is not above 0.")

    def _number(self, value: object, place: str) -> int | float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refuse(place, "is not a number.")
        if abs(value) > MAX_EXACT_INTEGER or (isinstance(value, float) and not math.isfinite(value)):
            raise self._refuse(place, f"is beyond ±{MAX_EXACT_INTEGER}, where numbers are not exact.")
        if value and abs(value) < 1e-9:
            raise self._refuse(place, "is closer to 0 than 1e-9.")
        return value

    def _values(self, value: object, keyword: str, pointer: str) -> Any:
        place = pointer_to(pointer, keyword)
        if keyword == "enum" and (not isinstance(value, list) or not value):
            raise self._refuse(place, "is not a list with at least one value.")
        self._check_value(value, place, 0)
        return value

    def _check_value(self, value: object, place: str, depth: int) -> None:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise self._refuse(place, f"is one of more than {MAX_VALUES} constants.")
        if depth > MAX_DEPTH:
            raise self._refuse(place, f"is nested deeper than {MAX_DEPTH} levels.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._number(value, place)
        if isinstance(value, str):
            self._text(value, place)
        for step, inner in _members(value):
            if isinstance(step, str):
                self._text(step, pointer_to(place, step))
            self._check_value(inner, pointer_to(place, step), depth + 1)

    # -- strings --------------------------------------------------------------------------------------------------

    def _text(self, text: str, place: str) -> None:
        if len(text) > MAX_CONSTANT_CHARS:
            raise self._refuse(place, f"has {len(text)} characters; at most {MAX_CONSTANT_CHARS} are accepted.")
        if any(map(is_unwritable, text)):
            raise self._refuse(place, "holds a control character that cannot be written.")

    def _shared(self, pattern: object, place: str) -> str:
        if not isinstance(pattern, str):
            raise self._refuse(place, "is not a string.")
        try:
            return shared_pattern(pattern)
        except ValueError as error:
            raise self._refuse(place, f"cannot be enforced: the pattern {error}.") from None

    def _pattern(self, schema: dict[str, Any], result: dict[str, Any], pointer: str, depth: int) -> None:
        result["pattern"] = self._shared(schema["pattern"], pointer_to(pointer, "pattern"))

    def _format(self, schema: dict[str, Any], result: dict[str, Any], pointer: str, depth: int) -> None:
        name = schema["format"]
        if isinstance(name, str) and name in OWN_FORMATS:
            result.setdefault("allOf", []).append({"pattern": OWN_FORMATS[name]})
        elif isinstance(name, str) and name in MATCHER_FORMATS:
            result["format"] = name
            if name == "hostname":
                result.setdefault("allOf", []).append({"maxLength": MAX_HOSTNAME_CHARS})
        else:
            known = ", ".join(KNOWN_FORMATS)
            raise self._refuse(
                pointer_to(pointer, "format"), f"is {shown(name)}, which cannot be enforced; known are {known}."
            )

    # -- objects --------------------------------------------------------------------------------------------------

    def _properties(self, schema: dict[str, Any], result: dict[str, Any], pointer: str, depth: int) -> None:
        result["properties"] = self._schema_map(schema, "properties", pointer, depth)

    def _pattern_properties(self, schema: dict[str, Any], result: dict[str, Any], pointer: str, depth: int) -> None:
        place = pointer_to(pointer, "patternProperties")
        rewritten: dict[str, Schema] = {}
        for pattern, inner in self._schema_map(schema, "patternProperties", pointer, depth).items():
            self._num_patterns += 1
            if self._num_patterns > MAX_PATTERN_PROPERTIES:
                raise self._refuse(
                    pointer_to(place, pattern), f"comes after {MAX_PATTERN_PROPERTIES} patterns for keys."
                )
            key = self._shared(pattern, pointer_to(place, pattern))
            if key in rewritten:
                raise self._refuse(pointer_to(place, pattern), "has the meaning of another pattern here.")
            rewritten[key] = inner
        result["patternProperties"] = rewritten

    def _schema_map(self, schema: dict[str, Any], keyword: str, pointer: str, depth: int) -> dict[str, Schema]:
        place, value = pointer_to(pointer, keyword), schema[keyword]
        if not isinstance(value, dict):
            raise self._refuse(place, "is not an object.")
        for name in value:
            self._text(name, pointer_to(place, name))
        return {name: self._schema(inner, pointer_to(place, name), depth + 1) for name, inner in value.items()}

    def _additional_properties(self, schema: dict[str, Any], result: dict[str, Any], pointer: str, depth: int) -> None:
        place = pointer_to(pointer, "additionalProperties")
        result["additionalProperties"] = self._schema(schema["additionalProperties"], place, depth + 1)

    def _required(self, schema: dict[str, Any], result: dict[str, Any], pointer: str, depth: int) -> None:
        value = schema["required"]
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self._refuse(pointer_to(pointer, "required"), "is not a list of strings.")
        for index, name in enumerate(value):
            self._text(name, pointer_to(pointer, "required", index))
        result["required"] = list(dict.fromkeys(value))

    def _check_min_properties(self, result: dict[str, Any], pointer: str) -> None:
        # The matcher counts members as written, and a name it does not know may be written twice.
        if result.get("minProperties", 0) - len(result.get("required", ())) > 1:
            place = pointer_to(pointer, "minProperties")
            raise self._refuse(place, "asks for more than one property beyond those that are required: require them.")

    # -- arrays ---------------------------------------------------------------------------------------------------

    def _items(self, schema: dict[str, Any], result: dict[str, Any], pointer: str, depth: int) -> None:
        place, value = pointer_to(pointer, "items"), schema["items"]
        if not isinstance(value, list):
            result["items"] = self._schema(value, place, depth + 1)
            return
        if "prefixItems" in schema:
            raise self._refuse(place, "is a list beside prefixItems: use one of them.")
        # Drafts before 2020-12.
        result["prefixItems"] = [
            self._schema(item, pointer_to(place, index), depth + 1) for index, item in enumerate(value)
        ]
        if "additionalItems" in schema:
            rest = pointer_to(pointer, "additionalItems")
            result["items"] = self._schema(schema["additionalItems"], rest, depth + 1)

    def _prefix_items(self, schema: dict[str, Any], result: dict[str, Any], pointer: str, depth: int) -> None:
        result["prefixItems"] = self._schema_list(schema["prefixItems"], pointer_to(pointer, "prefixItems"), depth)

    def _schema_list(self, value: object, place: str, depth: int) -> list[Schema]:
        if not isinstance(value, list) or not value:
            raise self._refuse(place, "is not a list with at least one schema.")
        return [self._schema(item, pointer_to(place, index), depth + 1) for index, item in enumerate(value)]

    # -- applicators and references -------------------------------------------------------------------------------

    def _applicator(self, value: object, keyword: str, pointer: str, depth: int) -> list[Schema]:
        place = pointer_to(pointer, keyword)
        if keyword != "oneOf" or not isinstance(value, list):
            return self._schema_list(value, place, depth)
        # The matcher takes oneOf only where it sees that no two options share a document, and it does not look
        # through references.
        return self._schema_list([self._references.looked_through(option) for option in value], place, depth)

    def _reference(self, reference: object, place: str) -> str:
        found = self._references.find(reference) if isinstance(reference, str) else None
        if found is None:
            raise self._refuse(
                place,
                f"refers to {shown(reference)}, which is not in this document: only #/… references are followed.",
            )
        pointer, target = found
        name = self._names.get(pointer)
        if name is None:
            name = self._names[pointer] = f"d{len(self._names)}"
            self._pending.append((pointer, target))
        return f"#/$defs/{name}"


def _members(value: object) -> Iterable[tuple[str | int, object]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _is_one_of(value: object, neutral: tuple[object, ...]) -> bool:
    return any(type(value) is type(other) and value == other for other in neutral)
