# ruff: noqa: E501  # the templates' own lines are as long as such lines are
"""Chat templates written for the tests, each in the manner of a model family, so that together they use every feature
of the language that checkpoints rely on."""

from __future__ import annotations

CHATML_JSON = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nCall a function when it helps.\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(scan=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.scan and message.role == "user" and message.content is string
            and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.scan = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {{- '<|im_start|>assistant\\n<think>\\n' ~ reasoning.strip('\\n') ~ '\\n</think>\\n\\n' ~ content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
            {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

CHATML_XML = """\
{%- macro show(value, fallback='', trimmed=true) -%}
    {%- if value is none or value is undefined -%}{{ fallback }}
    {%- elif value is string -%}{{ value | trim if trimmed else value }}
    {%- elif value is mapping or value is sequence -%}{{ value | tojson | safe }}
    {%- else -%}{{ value | string }}{%- endif -%}
{%- endmacro -%}
{%- if not messages %}{{- raise_exception('No messages provided.') }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- endif %}
{%- endfor %}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- if users | length == 0 %}{{- raise_exception('No user query found in messages.') }}{%- endif %}
{%- if tools and tools is iterable and tools is not mapping %}
    {{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' ~ (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>' }}
    {%- if messages[0].role == 'system' %}{{- '\\n\\n' + show(messages[0].content) }}{%- endif %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + show(messages[0].content) + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + show(message.content) + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if preserve_thinking is not defined or preserve_thinking is true %}
            {{- '<think>\\n' + show(message.reasoning_content) + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- show(message.content) }}
        {%- if message.tool_calls is defined and message.tool_calls is iterable %}
        {%- for call in message.tool_calls %}
            {%- set call = call.function if call.function is defined else call %}
            {{- ('\\n\\n' if loop.first and message.content | trim else '' if loop.first else '\\n')
                ~ '<tool_call>\\n<function=' ~ call.name ~ '>\\n' }}
            {%- for key, value in call.arguments | items %}
                {{- '<parameter=' + key + '>\\n' + show(value, trimmed=false) + '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem is undefined or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + show(message.content) + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- raise_exception('Unexpected message role: ' ~ message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' ~ ('<think>\\n\\n</think>\\n\\n' if enable_thinking is false else '<think>\\n') }}
{%- endif %}
"""

HEADERS = """\
{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'skip' %}{%- continue %}{%- endif %}
    {%- if message.role == 'end' %}{%- break %}{%- endif %}
    {%- if 'tool_calls' in message %}
        {%- if message.tool_calls|length != 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

TURNS = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\\n'}}{%- endif -%}
"""

ODDS_AND_ENDS = """\
{% set block %}
  kept {{ messages|length }}
{% endset %}
{{ block }}
    {% for key in messages[0].keys() | sort %}
{{ loop.index }}/{{ loop.length }} {{ key }}: {{ messages[0].get(key, 'none') | string | replace('<', '[') }}
    {% endfor %}
{%- set names = messages | map(attribute='role') | list %}
{{ names | join(', ') }} {{ names | unique | list | length }} {{ names[-1] }} {{ names[0][::-1] }} {{ names[1:] | join('+') }}
{{ ('%s-%03d' | format('n', 7)) }} {{ '%d%%' % 50 }} {{ '{:>6}|{}'.format('ab', [1, 'x']) }} {{ '{0[a]}'.format({'a': 1}) }}
{{ 'a,b,c'.split(',') | last }} {{ ' x '.strip() }} {{ 'x'.rjust(4, '.') }} {{ '-'.join(['p', 'q']) }} {{ 'ab' * 3 }}
{{ 7 // 2 }} {{ 7 % 2 }} {{ 2 ** 5 }} {{ 1.5 + 1 }} {{ [1] + [2] }} {{ (1, 2) }} {{ {'k': [true, none]} }}
{{ {'html': '<a> & \\'b\\'', 'é': 'ü'} | tojson }} {{ [1, {'b': 2, 'a': 1}] | tojson(indent=2) }}
{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ [1, 2] | tojson(separators=(',', ':')) }}
{{ 'x' in 'xyz' and 'q' not in ['a'] }} {{ missing is undefined }} {{ missing }} {{ missing or 'dflt' }} {{ missing | default('d') }}
{{ messages[0].content is string and 1 is number and none is none and true is true }} {{ 'yes' if 1 < 2 <= 2 else 'no' }}
{% macro greet(name, mark='!') %}{{ 'hi ' ~ name ~ mark }}{{ caller() if caller else '' }}{% endmacro %}
{{ greet('you') }} {% call greet('me', mark='?') %}inner{% endcall %}
{% for item in [1, [2, [3]]] recursive %}{{ loop(item) if item is iterable else item }};{% endfor %}
{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}{{ b }}{% else %}none{% endfor %}{% for n in [] %}{% else %}empty{% endfor %}
{% filter upper %}shout {{ names[0] }}{% endfilter %} {{ 'word one two' | title }} {{ ['b', 'a'] | sort | first }}
{{ [3, 1] | max }} {{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ 'line\\nline' | indent(2) }} {{ 3.7 | round | int }} {{ [1, 2] | sum }}
{% set ns = namespace(n=0, self='s') %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ ns.self }}
{% with x = 5 %}{{ x }}{% endwith %}{# a comment #}{% raw %}{{ raw }}{% endraw %}{{ '<b>' | e }}{{ '<i>' | safe ~ '<u>' }}{{ dict(a=1).a }}
"""
