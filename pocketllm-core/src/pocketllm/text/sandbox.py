"""The Jinja environment chat templates run in: Hugging Face's semantics inside a sandbox that also limits work.

Jinja's own sandbox keeps a template away from Python; it does not bound what a template costs. Here every loop,
operator, call, filter, literal container and joined buffer pays the :class:`RenderMeter` of the rendering.

Import this module only where a template is compiled: it imports jinja2.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from functools import update_wrapper
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from pocketllm.text.render_limits import MAX_WIDTH, RenderMeter

_meter: ContextVar[RenderMeter] = ContextVar("pocketllm_render_meter")

# No template needs them, and their cost cannot be told beforehand, or their answer is random.
_REMOVED_FILTERS = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
_REMOVED_GLOBALS = ("lipsum",)
_REFUSED_METHODS = frozenset({"encode", "fromkeys", "maketrans", "translate"})
_PADDING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
# Their argument or result is a container that may repeat its parts.
_WEIGHED_FILTERS = frozenset({"batch", "dictsort", "groupby", "list", "slice", "sort", "unique"})
_STRING_FILTERS = frozenset(
    {"capitalize", "e", "escape", "forceescape", "lower", "replace", "string", "title", "trim", "upper", "urlencode"}
)
# Visited nodes of a loop body that count as one step per iteration.
_NODES_PER_STEP = 4
_STEPS_PER_MACRO = 20


@contextlib.contextmanager
def metered(meter: RenderMeter) -> Iterator[None]:
    """Charge the renderings of this context to ``meter``."""
    token = _meter.set(meter)
    try:
        yield
    finally:
        _meter.reset(token)


class GuardedEnvironment(ImmutableSandboxedEnvironment):
    """Environment of one template. Compile anywhere; render inside :func:`metered`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Constant folding would run filters while compiling, where no meter is.
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            finalize=_finalize,
        )
        self.filters["tojson"] = _to_json
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        for name in _REMOVED_GLOBALS:
            del self.globals[name]
        for name, function in list(self.filters.items()):
            self.filters[name] = _guard_filter(name, function)
        self.filters["$loop"] = _pay_loop
        self.filters["$join"] = _join_operands
        self.filters["$made"] = _pay_container
        self.globals["dict"] = _make_dict
        self.globals["namespace"] = _TemplateNamespace

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _PayingNodes().visit(super()._parse(source, name, filename))
        return template

    def concat(self, parts: Iterable[str]) -> str:
        """Join a buffer (macro, set block, call block)."""
        parts = list(parts)
        _meter.get().joined(parts)
        return "".join(parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = _meter.get()
        meter.step()
        if operator == "*":
            meter.product(left, right)
        elif operator == "**":
            meter.power(left, right)
        elif operator == "%" and isinstance(left, str):
            meter.percent_format(left, right)
        elif operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                meter.chars(len(left) + len(right))
            elif isinstance(left, (list, tuple)):
                meter.weigh((left, right))
        return super().call_binop(context, operator, left, right)

    # The odd names, which are jinja's, leave every keyword to templates.
    def call(__self, __context: Context, __obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        meter = _meter.get()
        meter.step(_STEPS_PER_MACRO if isinstance(__obj, Macro) else 1)
        owner = getattr(__obj, "__self__", None)
        if owner is not None and isinstance(getattr(__obj, "__name__", None), str):
            args = __self._check_method(meter, owner, __obj.__name__, args)
        elif isinstance(__obj, LoopContext):
            meter.step(sum(len(argument) for argument in args if isinstance(argument, Sized)))
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, str):
            meter.chars(len(result))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Replace jinja's wrapper of ``str.format`` by one that also checks widths."""
        if super().wrap_str_format(value) is None:
            return None
        text: str = value.__self__

        def formatted(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                (kwargs,), args = args, ()
            meter = _meter.get()
            meter.chars(len(text))
            return _LimitedFormatter(self).vformat(text, args, kwargs)

        return update_wrapper(formatted, value)

    @staticmethod
    def _check_method(meter: RenderMeter, owner: object, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if name in _REFUSED_METHODS or isinstance(owner, (int, float, complex, bytes, bytearray)):
            raise SecurityError(f"the method {name!r} of {type(owner).__name__!r} is not available to chat templates")
        if not isinstance(owner, str):
            return args
        if name in _PADDING_METHODS:
            for value in args[:1]:
                meter.width(value)
            meter.chars(len(owner) * (MAX_WIDTH if name == "expandtabs" and "\t" in owner and args else 1))
        elif name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
            meter.replaced(owner, args[0], args[1])
        elif name == "join" and args:
            parts = list(args[0])
            meter.joined(parts, owner)
            return (parts, *args[1:])
        elif name in ("split", "rsplit", "splitlines"):
            meter.step(len(owner) // 8 + 1)
        return args


class _GenerationTag(Extension):
    """``{% generation %}`` marks what a trainer learns from; it changes no text."""

    tags = {"generation"}  # noqa: RUF012  # read only, and declared as an instance variable by jinja

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class _PayingNodes(NodeTransformer):
    """Routes what the sandbox does not intercept through filters that pay. ``$`` keeps their names out of templates."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.generic_visit(node)
        match node:
            case nodes.For():
                num_nodes = sum(1 for child in node.body for _ in _walk(child))
                cost = nodes.Const(1 + num_nodes // _NODES_PER_STEP, lineno=node.lineno)
                node.iter = _filter("$loop", node.iter, node.lineno, cost)
            case nodes.Concat():
                operands = nodes.Tuple(node.nodes, "load", lineno=node.lineno)
                return _filter("$join", operands, node.lineno)
            case nodes.List() | nodes.Dict():
                return _made(node, node.items)
            case nodes.Tuple(ctx="load"):
                return _made(node, node.items)
            case nodes.Getitem(arg=nodes.Slice()):
                return _filter("$made", node, node.lineno)
        return node


def _made(node: nodes.Expr, items: Sequence[nodes.Node]) -> nodes.Expr:
    """Pay for a literal container, unless its parts are constants and cannot repeat anything."""
    values = [item.value if isinstance(item, nodes.Pair) else item for item in items]
    if all(isinstance(value, nodes.Const) for value in values):
        return node
    return _filter("$made", node, node.lineno)


def _walk(node: nodes.Node) -> Iterator[nodes.Node]:
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(current.iter_child_nodes())


def _filter(name: str, node: nodes.Node, lineno: int, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=lineno)


class _LimitedFormatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        meter = _meter.get()
        meter.format_spec(format_spec)
        meter.chars(meter.weigh(value).num_chars)
        text: str = super().format_field(value, format_spec)
        meter.chars(len(text))
        return text

    def convert_field(self, value: Any, conversion: Any) -> Any:
        _meter.get().weigh(value)
        return super().convert_field(value, conversion)


class _TemplateNamespace(Namespace):
    """``namespace()`` without underscore names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Without a named self, since namespace(self=...) has to work.
        self, *values = args
        attributes = dict(*values, **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        # The usual one shows the values, which may be namespaces in turn and repeat without end.
        return "<Namespace>"


def _check_attribute(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"chat templates cannot store {name!r} on a namespace: no leading underscores")


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    made = dict(*args, **kwargs)
    _meter.get().weigh(made)
    return made


@pass_context
def _finalize(_context: Context, value: object) -> object:
    if not isinstance(value, str):
        _meter.get().weigh(value)
    _meter.get().step()
    return value


@pass_context
def _pay_loop(_context: Context, value: Any, cost: int) -> Any:
    meter = _meter.get()
    if isinstance(value, Undefined):
        return value
    if isinstance(value, Sized):
        # Paid in full although a break may come: the object itself keeps loop.length, previtem and the like exact.
        meter.step(1 + cost * len(value))
        return value
    return _pay_each(value, cost, meter)


def _pay_each(values: Iterable[Any], cost: int, meter: RenderMeter) -> Iterator[Any]:
    for value in values:
        meter.step(cost)
        yield value


@pass_context
def _join_operands(context: Context, operands: tuple[Any, ...]) -> str:
    _meter.get().joined(operands)
    return markup_join(operands) if context.eval_ctx.autoescape else str_join(operands)


@pass_context
def _pay_container(_context: Context, value: Any) -> Any:
    meter = _meter.get()
    if isinstance(value, str):
        meter.chars(len(value))
    else:
        meter.weigh(value)
    return value


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """``tojson`` as Hugging Face defines it: no HTML escapes, ``", "`` and ``": "`` between items."""
    meter = _meter.get()
    weight = meter.weigh(value)
    if indent is not None:
        meter.width(indent)
        meter.chars(weight.num_items * weight.depth * (indent if isinstance(indent, int) else len(indent)))
    if separators is not None:
        meter.chars(weight.num_items * sum(len(separator) for separator in separators))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _guard_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter so that it pays, and takes the context: a filter that does is never run while compiling."""
    passed = getattr(function, "jinja_pass_arg", None)
    passed_name: str | None = None if passed is None else passed.name

    @pass_context
    def guarded(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        meter = _meter.get()
        meter.step()
        value = _check_filter(meter, name, value, args, kwargs)
        if passed_name == "context":
            result = function(context, value, *args, **kwargs)
        elif passed_name == "eval_context":
            result = function(context.eval_ctx, value, *args, **kwargs)
        elif passed_name == "environment":
            result = function(context.environment, value, *args, **kwargs)
        else:
            result = function(value, *args, **kwargs)
        if isinstance(result, str):
            meter.chars(len(result))
        elif name in _WEIGHED_FILTERS:
            meter.weigh(result)
        return result

    return guarded


def _check_filter(meter: RenderMeter, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Refuse what the filter would cost; return the value to give it (an iterator is read for ``join``)."""
    if name in _STRING_FILTERS:
        meter.weigh(value)
    if name in ("center", "indent", "batch", "slice"):
        for width in (*args, *kwargs.values()):
            meter.width(width)
        if name == "indent" and isinstance(value, str):
            width = kwargs.get("width", args[0] if args else 4)
            meter.chars(len(value) + (value.count("\n") + 1) * (width if isinstance(width, int) else len(str(width))))
    elif name == "replace":
        old, new = (*args, *kwargs.values(), "", "")[:2]
        if isinstance(old, str) and isinstance(new, str):
            meter.replaced(str(value), old, new)
    elif name == "format":
        meter.percent_format(str(value), [*args, *kwargs.values()])
    elif name == "join":
        value = list(value)
        separator = kwargs.get("d", args[0] if args else "")
        meter.joined(value, str(separator))
    elif name == "round":
        for precision in (*args, *kwargs.values()):
            if isinstance(precision, int) and abs(precision) > 100:
                raise SecurityError("round takes a precision of at most 100 digits in chat templates")
    elif name == "sum":
        start = kwargs.get("start", args[1] if len(args) > 1 else 0)
        if not isinstance(start, (int, float)):
            raise SecurityError("sum adds numbers only in chat templates")
    return value
