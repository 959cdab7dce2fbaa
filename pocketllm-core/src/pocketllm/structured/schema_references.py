"""Where the references of a JSON schema lead: to places in the same document alone."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from pocketllm.structured.refusal import pointer_to
from pocketllm.structured.schema_keywords import ENFORCED

Schema = dict[str, Any] | bool


class References:
    """The references of one document."""

    def __init__(self, document: Schema) -> None:
        self._document = document

    def find(self, reference: str) -> tuple[str, Schema] | None:
        """The place that ``reference`` leads to, in its plain spelling, and the schema there."""
        base = self._document.get("$id", "") if isinstance(self._document, dict) else ""
        if base and isinstance(base, str) and reference.startswith(base.rstrip("#") + "#"):
            reference = reference[len(base.rstrip("#")) :]
        if reference not in ("#", "") and not reference.startswith("#/"):
            return None
        node: object = self._document
        pointer = ""
        for step in unquote(reference).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                if node is not self._document and isinstance(node.get("$id"), str):
                    return None
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            else:
                return None
            pointer = pointer_to(pointer, key)
        return (pointer, node) if isinstance(node, dict | bool) else None

    def looked_through(self, schema: object) -> object:
        """What a schema that is nothing but a reference refers to, however many stand in a row; else itself."""
        return self._through(schema, set())

    def _through(self, schema: object, seen: set[str]) -> object:
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str) or schema["$ref"] in seen:
            return schema
        if any(keyword in ENFORCED and keyword != "$ref" for keyword in schema):
            return schema
        seen.add(schema["$ref"])
        found = self.find(schema["$ref"])
        return schema if found is None else self._through(found[1], seen)
