"""Templates that ask for more than a rendering may have. Run as a program: renders each under a memory limit of 1.5 GiB
and prints, as JSON, what became of it. A harmless template must answer the same before and after."""

from __future__ import annotations

import json
import resource
import sys

from pocketllm.errors import CheckpointError, ConfigurationError
from pocketllm.text.chat_template import ChatTemplate
from tests.fuzz.headers import peak_bytes

_DOUBLE_TEXT = (
    "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
)
_DOUBLE_LIST = "{% set ns = namespace(x=['x']) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}USE"

REFUSED = {
    "string times": "{{ 'a' * 10**9 }}",
    "times string": "{{ 1000000000 * 'a' }}",
    "list times": "{{ [1] * 10**9 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "integers": "{% set ns = namespace(x=7) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "doubling by +": _DOUBLE_TEXT.replace("STEP", "ns.x + ns.x"),
    "doubling by ~": _DOUBLE_TEXT.replace("STEP", "ns.x ~ ns.x"),
    "doubling by replace": _DOUBLE_TEXT.replace("STEP", "ns.x.replace('x', 'xx')"),
    "doubling by the replace filter": _DOUBLE_TEXT.replace("STEP", "ns.x | replace('x', 'xx')"),
    "doubling by join": _DOUBLE_TEXT.replace("STEP", "ns.x.join([ns.x, ns.x])"),
    "doubling by the join filter": _DOUBLE_TEXT.replace("STEP", "[ns.x, ns.x] | join"),
    "doubling by %": _DOUBLE_TEXT.replace("STEP", "'%s%s' % (ns.x, ns.x)"),
    "doubling by format": _DOUBLE_TEXT.replace("STEP", "'{0}{0}'.format(ns.x)"),
    "doubling by the format filter": _DOUBLE_TEXT.replace("STEP", "'%s%s' | format(ns.x, ns.x)"),
    "doubling by set": "{% set ns = namespace(x='x') %}{% for i in range(60) %}"
    "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "doubling by a macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + _DOUBLE_TEXT.replace("STEP", "m(ns.x)"),
    "shared lists": _DOUBLE_LIST.replace("STEP", "[ns.x, ns.x]").replace("USE", "{{ ns.x }}"),
    "shared lists compared": _DOUBLE_LIST.replace("STEP", "[ns.x, ns.x]").replace("USE", "{{ ns.x == ns.x }}"),
    "shared tuples": _DOUBLE_LIST.replace("STEP", "(ns.x, ns.x)").replace("USE", "{{ ns.x | tojson }}"),
    "shared dicts": _DOUBLE_LIST.replace("STEP", "{'a': ns.x, 'b': ns.x}").replace("USE", "{{ ns.x | string }}"),
    "shared by dict()": _DOUBLE_LIST.replace("STEP", "dict(a=ns.x, b=ns.x)").replace("USE", "{{ ns.x ~ '' }}"),
    "shared by batch": _DOUBLE_LIST.replace("STEP", "(ns.x + ns.x) | batch(2) | list").replace("USE", "{{ ns.x }}"),
    "long lists": _DOUBLE_LIST.replace("STEP", "ns.x + ns.x").replace("USE", "{{ ns.x | length }}"),
    "range": "{% for i in range(10**8) %}{% endfor %}",
    "nested loops": "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "loops with big bodies": "{% for a in range(90000) %}" + "{% if a %}x{% endif %}" * 5000 + "{% endfor %}",
    "output": "{% for a in range(90000) %}" + "x" * 1000 + "{% endfor %}",
    "output of a macro": "{% macro m() %}{% for a in range(90000) %}"
    + "x" * 1000
    + "{% endfor %}{% endmacro %}{{ m() }}",
    "recursive macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for x in range(90) recursive %}{{ loop(range(90000)) }}{% endfor %}",
    "center": "{{ 'a' | center(10**9) }}",
    "rjust": "{{ 'a'.rjust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10**9) }}",
    "indent": "{{ 'a\\nb' | indent(10**9) }}",
    "tojson indent": "{{ [1] | tojson(indent=10**9) }}",
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "percent precision": "{{ '%.1000000000f' % 1 }}",
    "format width": "{{ '{:1000000000}'.format(1) }}",
    "nested format width": "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "format_map width": "{{ '{x:1000000000}'.format_map({'x': 1}) }}",
    "format filter width": "{{ '%1000000000d' | format(1) }}",
    "format through map": "{{ ['{:1000000000}'] | map(attribute='format') | map('string') | list }}{{ 'a' * 10**9 }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "slice": "{{ [1] | slice(10**9) | list }}",
    "round": "{{ 1 | round(10**9, 'ceil') }}",
    "sum of lists": "{{ [[1], [2]] | sum(start=[]) }}",
    "to_bytes": "{{ (5).to_bytes(10**9, 'big') }}",
    "encode": "{{ 'a'.encode().ljust(10**9) }}",
    "translate": "{{ 'a'.translate({97: 'b' * 1000}) }}",
    "fromkeys": "{{ {}.fromkeys([1, 2], 'x') }}",
    "lipsum": "{{ lipsum(n=10**9) }}",
    "globals": "{{ lipsum.__globals__ }}",
    "classes": "{{ ''.__class__.__mro__ }}",
    "format attributes": "{{ '{0.__class__}'.format(1).x.y }}",
    "namespace attributes": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "date format": "{{ strftime_now('%Y' * 1000) }}",
    "repeated text": "{% set x = 'x' * 20000000 %}{% for i in range(90000) %}{% set y = x.upper() %}{% endfor %}",
    "repeated slices": "{% set x = 'x' * 20000000 %}{% for i in range(90000) %}{% set y = x[1:] %}{% endfor %}",
    "many references": "{% set x = 'x' * 9000000 %}{{ range(90000) | map(attribute='q', default=x) | list | length }}",
}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1536 << 20, 1536 << 20))
    messages = [{"role": "user", "content": "hi"}]
    outcomes = {}
    for name, source in REFUSED.items():
        try:
            text = ChatTemplate(source).render(messages)
            outcomes[name] = f"rendered {len(text)} characters"
        except MemoryError:
            outcomes[name] = "ran out of memory"
        except CheckpointError as error:
            outcomes[name] = f"refused: {error}"
        except ConfigurationError as error:
            outcomes[name] = f"refused: {error}" if error.param == "messages" else f"wrong param: {error}"
        if "MemoryError" in outcomes[name]:
            outcomes[name] = "ran out of memory"
    json.dump({"outcomes": outcomes, "peak_bytes": peak_bytes()}, sys.stdout)


if __name__ == "__main__":
    main()
