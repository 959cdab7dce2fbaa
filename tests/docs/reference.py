"""docs/reference.md: what authors import, with fields, types, defaults and docstrings, as the source has them."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pocketllm.errors import PocketLLMError
from pocketllm.testing import RULES
from tests.docs.operating_tables import code, markdown


class Section(NamedTuple):
    """``names`` is empty for all public classes of the module, in the order of the source."""

    title: str
    module: str
    names: Sequence[str] = ()


SECTIONS = (
    Section("Requests, events, results", "pocketllm.types"),
    Section("Sampling", "pocketllm.sampling_params"),
    Section("Engine arguments", "pocketllm.engine_args"),
    Section("The Python API", "pocketllm", ("LLM", "AsyncLLM", "AsyncStream")),
    Section("Errors", "pocketllm.errors"),
    Section("What hooks give and take", "pocketllm.hookspecs", ("Engine", "EventSource", "Ticket")),
    Section("A call and its stages", "pocketllm.engine.call"),
    Section("Base classes of engines", "pocketllm.engine.iterator_engine"),
    Section("What most backends need", "pocketllm.backend_parts"),
    Section("Posting events", "pocketllm.engine.outbox", ("Outbox",)),
    Section("Checkpoints", "pocketllm.checkpoint"),
    Section("Constraints", "pocketllm.structured"),
    Section("Native engines", "pocketllm.structured.c_functions", ("MatcherFunctions", "matcher_pointers")),
    Section("Tool-call syntaxes", "pocketllm.text.tool_calls.base"),
    Section("The conformance kit", "pocketllm.testing"),
)  # fmt: skip


def page() -> str:
    parts = []
    for section in SECTIONS:
        module = importlib.import_module(section.module)
        values = [getattr(module, name) for name in names_of(section)]
        is_errors = isinstance(values[0], type) and issubclass(values[0], PocketLLMError)
        described = [_described(values[0]), _errors(values[1:])] if is_errors else [_described(each) for each in values]
        parts += [f"## {section.title}", f"From `{section.module}`.", *described]
    rules = markdown(("rule", "the kit asks"), [[code([name]), prose(said)] for name, said in RULES.items()])
    return "\n\n".join([*parts, "### The rules", rules])


def _errors(kinds: Sequence[type[PocketLLMError]]) -> str:
    rows = [[code([kind.__name__]), str(kind.status), code([kind.code]), prose(kind.__doc__ or "")] for kind in kinds]
    return markdown(("class", "status", "code", ""), rows)


def names_of(section: Section) -> Sequence[str]:
    module = importlib.import_module(section.module)
    if section.names:
        return section.names
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if callable(getattr(module, name))]
    return [name for name, value in vars(module).items() if _is_own_class(value, section.module)]


def _is_own_class(value: object, module: str) -> bool:
    return isinstance(value, type) and value.__module__ == module and not value.__name__.startswith("_")


def _described(value: Any) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    parts = [f"### {node.name}", *([f"`{signature(node)}`"] if isinstance(node, ast.FunctionDef) else [])]
    parts.append(prose(ast.get_docstring(node) or ""))
    if isinstance(node, ast.ClassDef):
        parts += [_fields(node), "\n".join(_methods(node))]
    return "\n\n".join(part for part in parts if part)


def _fields(node: ast.ClassDef) -> str:
    """A table of the fields of a class or the members of an enumeration; empty when it has none."""
    rows = []
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                cells = [code([name]), code([ast.unparse(annotation)]), code([ast.unparse(value)]) if value else ""]
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                cells = [code([name]), "", code([ast.unparse(value)])]
            case _:
                continue
        if not name.startswith("_"):
            rows.append([*cells, prose(_text_of(following)).replace("\n", " ")])
    return _table(["name", "type", "default", ""], rows) if rows else ""


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Without the columns that are empty in every row."""
    kept = [number for number in range(len(head)) if any(row[number] for row in rows)]
    return markdown([head[number] for number in kept], [[row[number] for number in kept] for row in rows])


def _methods(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        # The hooks that a base class implements are on the page of hooks.
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) or each.name.startswith(("_", "pocketllm_")):
            continue
        said = prose(ast.get_docstring(each) or "").replace("\n\n", "\n")
        yield f"- `{signature(each)}`" + (f": {said}" if said else "").replace("\n", "\n  ")


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """As it is called: without ``self``; a property like a field."""
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    returns = ast.unparse(node.returns) if node.returns else "None"
    if "property" in decorators:
        return f"{node.name}: {returns}"
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{prefix}{node.name}({', '.join(_parameters(node.args))}) -> {returns}"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    """As written, without ``self`` and without the mark of parameters by position."""
    named = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(named) - len(arguments.defaults)) + arguments.defaults
    yield from (_parameter(*pair) for pair in zip(named, defaults, strict=True) if pair[0].arg not in ("self", "cls"))
    if arguments.vararg or arguments.kwonlyargs:
        yield "*" + (_parameter(arguments.vararg, None) if arguments.vararg else "")
    yield from (_parameter(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    if arguments.kwarg:
        yield "**" + _parameter(arguments.kwarg, None)


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default else "")


def _text_of(node: ast.stmt | None) -> str:
    """The docstring of a field: the string that stands behind it."""
    match node:
        case ast.Expr(value=ast.Constant(value=str() as said)):
            return inspect.cleandoc(said)
    return ""


def prose(docstring: str) -> str:
    """A docstring as Markdown: roles and double backticks become code, the parts of Google's form become lists."""
    said = re.sub(r":\w+:`~?(?:[\w.]+\.)?([\w() ]+)`", r"`\1`", docstring).replace("``", "`").replace("<", "&lt;")
    paragraphs = []
    for paragraph in said.split("\n\n"):
        title, _, rest = paragraph.partition("\n")
        if title in ("Args:", "Attributes:", "Raises:", "Returns:"):
            entries = re.sub(r"\n {5,}", " ", rest)
            paragraphs.append("\n".join([title, "", *(f"- {line.strip()}" for line in entries.splitlines())]))
        else:
            paragraphs.append(textwrap.fill(" ".join(paragraph.split()), 120, break_on_hyphens=False))
    return "\n\n".join(paragraphs)
