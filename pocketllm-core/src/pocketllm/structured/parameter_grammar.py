"""The parameters of one tool as Lark rules, for syntaxes that write each in an element of its own."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pocketllm.structured.lark_text import quoted
from pocketllm.structured.refusal import SchemaRefusedError, pointer_to
from pocketllm.structured.schema_references import Schema
from pocketllm.structured.schema_subset import RewrittenSchema, rewrite_schema

_PARAM = "tools"


def parameter_rules(
    parameters: dict[str, Any],
    *,
    prefix: str,
    text_opening: str,
    json_opening: str,
    closing: str,
    between: str,
    strict: bool,
) -> tuple[str, list[str]]:
    """What stands between a call's tags, and the rules it needs.

    Parameters come in the schema's order, each at most once, the required ones always.

    Args:
        parameters: the schema of the arguments.
        prefix: begins the names of the rules.
        text_opening, json_opening: the tag before a string as it is, and before JSON; ``{key}`` is the name.
        closing: the tag after a value, whose text no string may hold.
        between: what separates two parameters.
        strict: refuse what cannot be enforced, instead of enforcing less.

    Raises:
        SchemaRefusedError: strict, and a part cannot be enforced.
    """
    properties, required = _members(parameters, strict)
    rules: list[str] = []
    items: list[tuple[str, bool]] = []
    for index, (key, schema) in enumerate(properties.items()):
        rule = f"{prefix}_p{index}"
        choices, extra = _value_choices(schema, parameters, key, rule, (text_opening, json_opening, closing), strict)
        rules.append(f"{rule}: {' | '.join(choices)}")
        rules.extend(extra)
        items.append((rule, key in required))
    return _sequence(items, between, prefix, rules), rules


def _members(parameters: dict[str, Any], strict: bool) -> tuple[dict[str, Any], list[str]]:
    """The declared properties, and those of them that are required."""
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if strict:
        _check_shape(parameters)
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}, []
    return properties, [name for name in required if name in properties]


def _check_shape(parameters: dict[str, Any]) -> None:
    rewritten = rewrite_schema(parameters, param=_PARAM).root
    known = {"type", "properties", "required", "additionalProperties"}
    if isinstance(rewritten, bool) or rewritten.get("type") != "object":
        raise SchemaRefusedError("", "is not an object with properties.", param=_PARAM)
    for keyword in rewritten:
        if keyword not in known:
            raise SchemaRefusedError(pointer_to("", keyword), "cannot be enforced in this syntax.", param=_PARAM)
    for name in rewritten.get("required", ()):
        if name not in rewritten.get("properties", {}):
            raise SchemaRefusedError("/required", f"names {name!r}, which has no schema.", param=_PARAM)


def _value_choices(
    schema: Any, parameters: dict[str, Any], key: str, rule: str, tags: tuple[str, str, str], strict: bool
) -> tuple[list[str], list[str]]:
    """The alternatives for one parameter, and the rules they need."""
    text_opening, json_opening, closing = tags
    before_text, before_json = quoted(text_opening.format(key=key)), quoted(json_opening.format(key=key))
    pointer = pointer_to("", "properties", key)
    try:
        rewritten = _rewritten(schema, parameters, pointer)
        text_part, json_part = _split(rewritten, pointer)
    except SchemaRefusedError:
        if strict:
            raise
        text_part, json_part = _Text(), None
        rewritten = RewrittenSchema(True, {}, [])
    choices, rules = [], []
    if text_part is not None and text_part.values is None:
        choices.append(f"{before_text} {rule.upper()}_TEXT")
        rules.append(f"{rule.upper()}_TEXT: ({text_part.expression(closing)}) {quoted(closing)}")
    elif text_part is not None and text_part.values:
        options = " | ".join(quoted(value) for value in text_part.values)
        choices.append(f"{before_text} ({options}) {quoted(closing)}")
    if json_part is not None:
        choices.append(f"{before_json} {rule}_json {quoted(closing)}")
        document = rewritten.document(json_part)
        rules.append(f"{rule}_json: %json {msgspec.json.encode(document).decode()}")
    return choices, rules


def _rewritten(schema: Any, parameters: dict[str, Any], pointer: str) -> RewrittenSchema:
    """The parameter's schema, with the definitions of the whole in reach."""
    definitions = {name: parameters[name] for name in ("$defs", "definitions") if name in parameters}
    if isinstance(schema, dict):
        schema = {**definitions, **schema}
    try:
        return rewrite_schema(schema, param=_PARAM)
    except SchemaRefusedError as error:
        place = error.pointer if error.pointer.startswith(("/$defs/", "/definitions/")) else pointer + error.pointer
        raise SchemaRefusedError(place, error.reason, param=_PARAM) from None


class _Text(msgspec.Struct, frozen=True):
    """Strings written as they are: any that fit, or one of ``values``."""

    values: list[str] | None = None
    pattern: str | None = None
    min_length: int = 0
    max_length: int | None = None

    def expression(self, closing: str) -> str:
        """A Lark terminal for the strings that do not hold the closing tag."""
        tag = closing.strip().replace("/", "\\/")
        limit = "" if self.max_length is None else str(self.max_length)
        length = f"{{{self.min_length},{limit}}}" if self.min_length or limit else "*"
        parts = [f"/(?s:.{length})/", f"~/(?s:.*){tag}(?s:.*)/"]
        if self.pattern is not None:
            source, starts, ends = _anchors(self.pattern)
            source = source.replace("/", "\\/")
            parts.append(f"/{'' if starts else '(?s:.*)'}(?:{source}){'' if ends else '(?s:.*)'}/")
        return " & ".join(parts)


def _anchors(pattern: str) -> tuple[str, bool, bool]:
    """``pattern`` without the anchors at its ends, and whether it had them."""
    starts, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    return pattern[starts : len(pattern) - ends], starts, ends


_INNER_ANCHOR = re.compile(r"(?<![\\\[])\^|(?<!\\)\$")


def _split(rewritten: RewrittenSchema, pointer: str) -> tuple[_Text | None, Schema | None]:
    """The strings a schema allows, and the schema of its other values."""
    root = _resolved(rewritten.root, rewritten)
    if isinstance(root, bool):
        return (_Text(), root) if root else (None, root)
    if "enum" in root or "const" in root:
        return _split_values(root, pointer)
    for keyword in ("anyOf", "oneOf"):
        if set(root) == {keyword}:
            return _split_options(root[keyword], rewritten, pointer_to(pointer, keyword))
    declared = root.get("type")
    names = list(declared) if isinstance(declared, list) else [declared]
    if declared is not None and "string" not in names:
        return None, root
    unknown = set(root) - {"type", "pattern", "minLength", "maxLength"}
    if declared is None and root:
        raise SchemaRefusedError(pointer, "has no type, which this syntax needs: add one.", param=_PARAM)
    if declared == "string" and unknown:
        raise SchemaRefusedError(
            pointer_to(pointer, sorted(unknown)[0]), "cannot be enforced for a string in this syntax.", param=_PARAM
        )
    pattern = root.get("pattern")
    if pattern is not None and (
        _INNER_ANCHOR.search(_anchors(pattern)[0]) or ("|" in pattern and any(_anchors(pattern)[1:]))
    ):
        raise SchemaRefusedError(
            pointer_to(pointer, "pattern"), "has an anchor inside, or beside alternatives: use a group.", param=_PARAM
        )
    text = _Text(None, pattern, root.get("minLength", 0), root.get("maxLength"))
    others = [name for name in names if name not in ("string", None)]
    if declared is None:
        return text, True
    return text, {**root, "type": others} if others else None


def _split_values(root: dict[str, Any], pointer: str) -> tuple[_Text | None, Schema | None]:
    if len(set(root) - {"type"}) > 1:
        raise SchemaRefusedError(pointer, "has a keyword beside its constants: remove it.", param=_PARAM)
    values = root["enum"] if "enum" in root else [root["const"]]
    texts = [value for value in values if isinstance(value, str) and "<" not in value]
    if len(texts) < sum(isinstance(value, str) for value in values) or "" in texts:
        raise SchemaRefusedError(pointer, 'has a constant that is empty or holds "<".', param=_PARAM)
    others = [value for value in values if not isinstance(value, str)]
    kept = {"type": root["type"]} if "type" in root else {}
    return (_Text(texts) if texts else None), ({**kept, "enum": others} if others else None)


def _split_options(
    options: list[Schema], rewritten: RewrittenSchema, pointer: str
) -> tuple[_Text | None, Schema | None]:
    texts: list[_Text] = []
    others: list[Schema] = []
    for index, option in enumerate(options):
        inner = RewrittenSchema(option, rewritten.definitions, [])
        text, other = _split(inner, pointer_to(pointer, index))
        if text is not None:
            texts.append(text)
        if other is not None:
            others.append(other)
    if any(text == _Text() for text in texts):
        texts = [_Text()]
    if len(texts) > 1 and any(text.values is None for text in texts):
        raise SchemaRefusedError(pointer, "has several kinds of strings, which this syntax cannot tell.", param=_PARAM)
    merged = texts[0] if len(texts) == 1 else None
    if len(texts) > 1:
        merged = _Text([value for text in texts for value in text.values or ()])
    return merged, ({"anyOf": others} if others else None)


def _resolved(schema: Schema, rewritten: RewrittenSchema) -> Schema:
    """``schema``, or what it refers to when it does nothing else."""
    for _ in range(len(rewritten.definitions) + 1):
        if isinstance(schema, bool) or set(schema) != {"$ref"}:
            return schema
        schema = rewritten.definitions[schema["$ref"].removeprefix("#/$defs/")]
    return schema


def _sequence(items: list[tuple[str, bool]], between: str, prefix: str, rules: list[str]) -> str:
    """A rule text for the items in order, optional ones left out or not, with ``between`` between those that are there.

    The rules of the form "the rest, after something" and "the rest, at the start" are made back to front.
    """
    if not between:
        return " ".join(rule if needed else f"{rule}?" for rule, needed in items)
    gap = quoted(between)
    after, first = "", ""
    for index in range(len(items) - 1, -1, -1):
        rule, needed = items[index]
        with_rest = f"{rule} {after}".strip()
        new_after = f"{gap} {with_rest}" if needed else f"({gap} {rule})? {after}".strip()
        new_first = with_rest if needed else f"({with_rest} | {first})" if first else f"({with_rest})?"
        after_name, first_name = f"{prefix}_a{index}", f"{prefix}_f{index}"
        rules.append(f"{after_name}: {new_after}")
        rules.append(f"{first_name}: {new_first}")
        after, first = after_name, first_name
    return first
