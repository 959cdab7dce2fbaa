"""The kinds of constraint, their errors and their limits."""

from __future__ import annotations

import json
import random
import re
import threading

import pytest

from pocketllm.checkpoint import Tokenizer
from pocketllm.errors import ConfigurationError
from pocketllm.structured import KINDS, CompiledConstraint, compile_constraint
from pocketllm.structured import compiled as compiled_module
from pocketllm.types import Constraint
from tests.structured.sampling import accepts, allowed_ids, byte_ids, walk


def takes(kind: str, text: str, tokenizer: Tokenizer, *answers: str) -> list[bool]:
    compiled = compile_constraint(Constraint(kind, text), tokenizer)
    return [accepts(compiled.matcher([tokenizer.eos_token_id or 0]), byte_ids(tokenizer, answer)) for answer in answers]


def test_json_object_takes_objects_alone(tokenizer: Tokenizer) -> None:
    answers = ("{}", '{"a": [1, {"b": null}]}', "[]", "{", '{"a": }', " {}", "{}x")
    assert takes("json_object", "", tokenizer, *answers) == [True, True, False, False, False, False, False]


def test_white_space_is_bounded(tokenizer: Tokenizer) -> None:
    assert takes("json_object", "", tokenizer, "{" + " " * 40 + "}", "{" + "\n" * 41 + "}") == [True, False]


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("[0-9]{3}-[a-z]{2}", "123-ab", "123-a"),
        ("^[ab]+$", "abba", "abc"),
        ("a/b", "a/b", "a"),
        (r"a\/\\", "a/\\", "a/"),
        ("a\nb", "a\nb", "ab"),
        ("(?i)yes|no", "YES", "maybe"),
        ("日本|é+", "日本", "日"),
        ("", "", "a"),
    ],
)
def test_a_regex_takes_what_matches_it(pattern: str, good: str, bad: str, tokenizer: Tokenizer) -> None:
    assert takes("regex", pattern, tokenizer, good, bad) == [True, False]


def test_a_choice_takes_its_texts_alone(tokenizer: Tokenizer) -> None:
    choices = ["yes", "yes!", "a/b", "a|b", "\\d", "tab\there", "line\nend", "日本", "[x]", '"']
    assert takes("choice", json.dumps(choices), tokenizer, *choices) == [True] * len(choices)
    assert takes("choice", json.dumps(choices), tokenizer, "ye", "a", "0", "x", "") == [False] * 5


def test_a_grammar_takes_its_language(tokenizer: Tokenizer) -> None:
    text = 'start: WORD ("," WORD)*  // a list\nWORD: /[a-z]+/\n'
    assert takes("grammar", text, tokenizer, "a", "ab,cd", "ab,", "") == [True, True, False, False]


def test_a_schema_inside_a_grammar_follows_the_rules_of_schemas(tokenizer: Tokenizer) -> None:
    text = 'start: "call " %json {"type": "object", "properties": {"a": {"type": "integer"}}}'
    assert takes("grammar", text, tokenizer, 'call {"a":1}', 'call {"a":1,"\\u0061":"x"}') == [True, False]
    with pytest.raises(ConfigurationError, match=r"/items/uniqueItems"):
        compile_constraint(Constraint("grammar", 'start: %json {"items": {"uniqueItems": true}}'), tokenizer)
    with pytest.raises(ConfigurationError, match="/madeUp"):
        compile_constraint(
            Constraint("grammar", 'start: "x" %json {"madeUp": 1, "x-guidance": {"lenient": true}}'), tokenizer
        )
    # The same word in a string, an expression or a comment is not one.
    assert takes("grammar", 'start: "%json {" /%json [{]/ // %json {', tokenizer, "%json {%json {") == [True]


def test_control_tokens_count_as_text_only_where_a_grammar_quotes_them(tokenizer: Tokenizer) -> None:
    control = tokenizer.token_id("｜DSML｜")
    assert control is not None
    quoting = compile_constraint(Constraint("grammar", 'start: "<｜DSML｜calls>"'), tokenizer)
    ids = [*byte_ids(tokenizer, "<"), control, *byte_ids(tokenizer, "calls>")]
    assert accepts(quoting.matcher([0]), ids)
    assert not accepts(compile_constraint(Constraint("regex", "<.*>"), tokenizer).matcher([0]), ids)


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        ("regex", "(a", "unclosed group"),
        ("regex", "a(?=b)", "look-around"),
        ("regex", "[^\\x00-\\x{10FFFF}]", "cannot be used"),
        ("regex", "a" * 70_000, "at most 65536"),
        ("regex", "\ud800", "lone surrogate"),
        ("choice", "[]", "1 to 10000 strings"),
        ("choice", '["a", ""]', "not empty"),
        ("choice", '{"a": 1}', "list of strings"),
        ("choice", "[1]", "list of strings"),
        ("grammar", "", "grammar cannot be used"),
        ("grammar", "start: missing", "missing"),
        ("grammar", 'root ::= "a"', "Lark"),
        ("grammar", 'start: "a" %json nothing', "not JSON"),
        ("grammar", "start: t\nt[temperature=0.5]: /a+/", "temperature"),
        ("grammar", "start: " + '"a" ' * 300_000, "at most 1048576"),
        ("yaml", "a: 1", "json_object, json_schema, regex, grammar, choice"),
    ],
)
def test_what_is_wrong_is_said(kind: str, text: str, complaint: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(complaint)) as caught:
        compile_constraint(Constraint(kind, text), tokenizer)
    assert caught.value.param == "structured_outputs"
    assert len(str(caught.value)) < 800


def test_the_request_field_can_be_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigurationError) as caught:
        compile_constraint(Constraint("regex", "(a"), tokenizer, param="guided_regex")
    assert caught.value.param == "guided_regex"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "((a{1000}){1000}){1000}"),
        ("regex", "(x+x+)+y{1,900}(a|b|c){1,900}"),
        ("grammar", "start: a\na: a a | b\nb: b b | a | /x/"),
        ("grammar", "start: " + "(" * 3000 + '"a"' + ")" * 3000),
        ("json_schema", json.dumps({"type": "array", "items": {"type": "array", "maxItems": 5000}, "maxItems": 5000})),
        ("json_schema", json.dumps({"type": "string", "minLength": 10_000})),
        ("json_schema", json.dumps({"enum": [f"value {index}" for index in range(19_000)]})),
        ("json_schema", json.dumps({"properties": {f"p{index}": {"type": "string"} for index in range(1_900)}})),
        ("json_schema", json.dumps({"allOf": [{"anyOf": [{"maxLength": n + m} for n in range(9)]} for m in range(9)]})),
    ],
)
def test_heavy_constraints_are_compiled_or_refused(kind: str, text: str, tokenizer: Tokenizer) -> None:
    try:
        compiled = compile_constraint(Constraint(kind, text), tokenizer)
    except ConfigurationError:
        return
    assert not compiled.matcher([0]).is_done


def test_a_long_text_that_alone_can_follow(tokenizer: Tokenizer) -> None:
    text = "the quick brown fox " * 490
    compiled = compile_constraint(Constraint("json_schema", json.dumps({"const": text})), tokenizer)
    assert accepts(compiled.matcher([0]), byte_ids(tokenizer, json.dumps(text)))
    assert not accepts(compiled.matcher([0]), byte_ids(tokenizer, json.dumps(text[:-1])))


def test_an_object_of_many_optional_properties(tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {f"p{index}": {"type": "null"} for index in range(1_900)}}
    compiled = compile_constraint(Constraint("json_schema", json.dumps(schema)), tokenizer)
    for document in ({}, {"p0": None, "p9": None, "p1899": None}, {"p1898": None, "other": 1}):
        matcher = compiled.matcher([0])
        for token in byte_ids(tokenizer, json.dumps(document)):
            assert token in allowed_ids(matcher, tokenizer.vocab_size)
            assert matcher.accept(token)
        assert matcher.allows_eos


def test_a_constraint_is_compiled_once_for_a_tokenizer(tokenizer: Tokenizer, spm_tokenizer: Tokenizer) -> None:
    constraint = Constraint("regex", "once[0-9]")
    first = compile_constraint(constraint, tokenizer)
    assert compile_constraint(Constraint("regex", "once[0-9]"), tokenizer) is first
    assert compile_constraint(constraint, spm_tokenizer) is not first
    assert compile_constraint(Constraint("choice", '["once[0-9]"]'), tokenizer) is not first


def test_the_cache_is_bounded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_module, "MAX_CACHE_ENTRIES", 3)
    first = compile_constraint(Constraint("regex", "bounded-first"), tokenizer)
    for index in range(4):
        compile_constraint(Constraint("regex", f"bounded{index}"), tokenizer)
    assert len(compiled_module._cache) == 3
    assert compile_constraint(Constraint("regex", "bounded-first"), tokenizer) is not first
    assert compile_constraint(Constraint("regex", "bounded3"), tokenizer).num_cache_bytes < 2**20
    monkeypatch.setattr(compiled_module, "MAX_CACHE_BYTES", 1)
    compile_constraint(Constraint("regex", "bounded-last"), tokenizer)
    assert len(compiled_module._cache) == 1


def test_many_threads_may_make_matchers_at_once(tokenizer: Tokenizer) -> None:
    compiled = compile_constraint(Constraint("json_object", ""), tokenizer)
    stop_ids = [tokenizer.eos_token_id or 0]
    failures: list[str] = []

    def work(seed: int, shared: CompiledConstraint) -> None:
        for number in range(10):
            text = walk(shared.matcher(stop_ids), tokenizer, stop_ids, random.Random(seed * 100 + number))
            if text is not None and not isinstance(json.loads(text), dict):
                failures.append(repr(text))

    threads = [threading.Thread(target=work, args=(seed, compiled)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_every_kind_has_a_test() -> None:
    assert set(KINDS) == {"json_object", "json_schema", "regex", "grammar", "choice"}
