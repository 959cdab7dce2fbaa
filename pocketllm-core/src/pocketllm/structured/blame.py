"""Which part of a refused schema is at fault."""

from __future__ import annotations

from pocketllm.structured.grammars import in_few_words, is_unsatisfiable, new_matcher, problem_of, schema_grammar
from pocketllm.structured.refusal import SchemaRefusedError, pointer_to
from pocketllm.structured.schema_references import Schema
from pocketllm.structured.schema_subset import RewrittenSchema
from pocketllm.structured.token_table import TokenTable

_MAX_TRIALS = 400
"""Compilations spent on finding it."""

# Keywords of the rewritten schema that come from another one in the original.
_ORIGINS = {"prefixItems": ("items",), "items": ("additionalItems",), "allOf": ("format",)}


def blame(schema: RewrittenSchema, table: TokenTable, problem: str, param: str) -> SchemaRefusedError:
    """The innermost subschema that the library refuses on its own, and the keyword of it without which it does not."""
    trials = 0

    def fails(candidate: Schema) -> str | None:
        nonlocal trials
        trials += 1
        return problem_of(new_matcher(table, schema_grammar(schema.document(candidate))))

    pointer = ""
    for place in schema.places:
        if trials >= _MAX_TRIALS:
            break
        found = fails(place.rewritten)
        # What is optional may well be unsatisfiable; that is a fault only where the whole is.
        if found is None or (is_unsatisfiable(found) and not is_unsatisfiable(problem)):
            continue
        pointer, problem = place.pointer, found
        # An unsatisfiable "type" is unsatisfiable through what stands beside it.
        for keyword in sorted(place.rewritten, key=lambda name: name in ("type", "properties")):
            if fails({name: value for name, value in place.rewritten.items() if name != keyword}) is None:
                origin = next((name for name in (keyword, *_ORIGINS.get(keyword, ())) if name in place.original), None)
                pointer = pointer if origin is None else pointer_to(pointer, origin)
                break
        break
    return SchemaRefusedError(pointer, f"cannot be enforced: {in_few_words(problem).rstrip('.')}.", param=param)
