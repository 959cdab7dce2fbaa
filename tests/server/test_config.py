"""``pocketllm serve --print-config``: which value wins, where it came from, and that its text can be given back."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.cli.engine_options import EngineOption
from pocketllm.cli.group import program
from pocketllm.errors import PocketLLMError
from pocketllm_server.cli import serve
from pocketllm_server.config.config_file import ALIASES, toml_text

LINE = re.compile(r"^(?:# )?(\S+) (?:= (.*?)|is .*?)  # (.+)$")


def run(*arguments: str, **environ: str) -> str:
    """What the command prints; its error's message when it fails."""
    result = CliRunner().invoke(program, ["serve", *arguments, "--print-config"], env=environ)
    if isinstance(result.exception, PocketLLMError):
        return "Error: " + result.exception.message
    return result.output


def effective(*arguments: str, **environ: str) -> dict[str, tuple[Any, str]]:
    """(value, origin) by key; backend options by their own names."""
    text = run(*arguments, **environ)
    values = tomllib.loads(text)
    values.update({f'"{key}"': value for key, value in values.pop("backend_options", {}).items()})
    found = {}
    for line in text.splitlines():
        match = LINE.match(line)
        if match:
            found[match.group(1).strip('"')] = (values.get(match.group(1)), match.group(3))
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "server.toml"
    path.write_text("port = 1111\nmax_batch_size = 11\nlog_level = 'error'\naccess_log = false\nmodel = 'a-model'\n")
    return path


def test_without_settings_every_default_holds() -> None:
    found = effective()
    assert found["port"] == (8000, "default")
    assert found["model"] == ("smollm2", "default")
    assert found["max_num_requests"] == (1024, "default")
    assert found["uds"] == (None, "default")
    assert {origin for _, origin in found.values()} == {"default"}


def test_every_layer_wins_over_those_below(file: Path) -> None:
    """One server option and one of the engine, set in all layers, then with the upper ones taken away in turn."""
    environ = {"POCKETLLM_PORT": "2222", "POCKETLLM_MAX_BATCH_SIZE": "22"}
    line, config = ("--port", "3333", "--max-batch-size", "33"), ("--config", str(file))
    found = effective(*line, *config, **environ)
    assert (found["port"], found["max_batch_size"]) == ((3333, "command line"), (33, "command line"))
    found = effective(*config, **environ)
    origin = f"config file {file}"
    assert (found["port"], found["max_batch_size"]) == ((1111, origin), (11, origin))
    found = effective(**environ)
    assert found["port"] == (2222, "environment POCKETLLM_PORT")
    assert found["max_batch_size"] == (22, "environment POCKETLLM_MAX_BATCH_SIZE")
    found = effective()
    assert (found["port"], found["max_batch_size"]) == ((8000, "default"), (1, "default"))


def test_the_manual_gives_the_order_that_holds(repository: Path) -> None:
    text = " ".join((repository / "docs/api.md").read_text(encoding="utf-8").split())
    assert (
        "Each has a flag, a key of the TOML file that `--config` names, and an environment variable "
        "(`POCKETLLM_…`), in this order of precedence"
    ) in text


def test_false_in_the_file_wins_over_true_in_the_environment(file: Path) -> None:
    assert effective("--config", str(file), POCKETLLM_ACCESS_LOG="1")["access_log"][0] is False
    assert effective("--config", str(file), "--access-log")["access_log"] == (True, "command line")


def test_the_file_can_be_named_by_a_variable(file: Path) -> None:
    assert effective(POCKETLLM_CONFIG=str(file))["port"] == (1111, f"config file {file}")


def test_a_model_argument_wins_over_the_file(file: Path) -> None:
    assert effective("other", "--config", str(file))["model"][0] == "other"
    assert effective("--config", str(file))["model"] == ("a-model", f"config file {file}")
    assert "Two models are named" in run("one", "--model", "two")


def test_backend_options_are_merged_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[backend_options]\na = 1\nb = "4"\nc = [1, "x"]\n')
    found = effective(
        "--config", str(path), "--backend-option", "a=2", POCKETLLM_BACKEND_OPTIONS='{"a": 0, "b": 0, "d": true}'
    )
    origin = f"config file {path}"
    assert found["a"] == (2, "command line")
    assert (found["b"], found["c"]) == (("4", origin), ([1, "x"], origin))
    assert found["d"] == (True, "environment POCKETLLM_BACKEND_OPTIONS")


def test_what_is_printed_can_be_given_back(tmp_path: Path, file: Path) -> None:
    arguments = ("--config", str(file), "--cors-origin", "https://a.example", "--cors-origin", "http://b.example")
    arguments += ("--backend-option", "x=1.5", "--device", "cuda", "--device-ids", "2,3", "--drain-timeout", "1e3")
    first = run(*arguments, POCKETLLM_MAX_MODEL_LEN="512", POCKETLLM_ENABLE_PREFIX_CACHING="0")
    again = tmp_path / "again.toml"
    again.write_text(first)
    second = run("--config", str(again))
    assert tomllib.loads(second) == tomllib.loads(first)
    assert tomllib.loads(second)["cors_origin"] == ["https://a.example", "http://b.example"]
    assert tomllib.loads(second)["device_ids"] == [2, 3]


def test_secrets_are_not_printed(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('api_key = ["one-secret", "two-secret"]\nssl_keyfile_password = "my-secret"\n')
    text = run("--config", str(path), POCKETLLM_API_KEY="other-secret")
    assert "secret" not in text.replace(str(path), "")
    assert "# api_key is set, and not shown here" in text


@pytest.mark.parametrize(
    "text, words",
    [
        ("prot = 1", "the key 'prot' is unknown. Did you mean 'port'?"),
        ("max_num_request = 1", "Did you mean 'max_num_requests'?"),
        ("zzzz = 1", "--print-config"),
        ("[server]\nport = 1", "'server' is unknown"),
        ("print_config = true", "is unknown"),
        ("config = 'x'", "is unknown"),
        ("port = 'x'", "'x' is not a valid integer"),
        ("port = true", "'port' = True is neither text nor a number"),
        ("port = 1979-05-27", "neither text nor a number"),
        ("access_log = 1", "neither true nor false"),
        ("backend_options = 1", "not a table"),
        ("[backend_options]\nx = 1979-05-27", "not text, a number, a list or a table"),
        ("log_level = 'loud'", "'loud' is not one of"),
        ("port = 70000", "port = 70000 is out of range"),
        ("max_batch_size = 4\nmax_num_seqs = 5", "twice"),
        ("port = ", "is not TOML"),
        ("port = 1\nport = 2", "is not TOML"),
    ],
)
def test_what_a_file_may_not_hold(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    output = run("--config", str(path))
    assert words in output
    assert "Traceback" not in output


def test_a_file_that_is_not_there() -> None:
    assert "cannot be read: No such file" in run("--config", "/no/such/file.toml")


@pytest.mark.parametrize("alias, own", sorted(ALIASES.items()))
def test_flags_of_other_servers_set_our_own(alias: str, own: str, tmp_path: Path) -> None:
    context = click.Context(serve)
    option = next(each for each in serve.get_params(context) if own in (*each.opts, *each.secondary_opts))
    assert isinstance(option, click.Option)
    key = option.opts[0].removeprefix("--").replace("-", "_")
    value: tuple[str, ...] = ()
    wanted: Any = own in option.opts
    if not option.is_flag:
        value, wanted = {
            "max_queue": (("7",), 7),
            "log_level": (("warning",), "warning"),
            "cors_origin": (
                ('["https://a.example", "https://b.example"]',),
                ["https://a.example", "https://b.example"],
            ),
            "tokenizer_path": (("some/where",), "some/where"),
            "tensor_parallel_size": (("2",), 2),
        }.get(key, (("5",), 5))
    assert effective(alias, *value)[key] == (wanted, "command line")
    if value and alias.startswith("--"):
        assert effective(f"{alias}={value[0]}")[key][0] == wanted
        path = tmp_path / "alias.toml"
        path.write_text(f"{alias.removeprefix('--').replace('-', '_')} = {toml_text(value[0])}\n")
        assert effective("--config", str(path))[key][0] == wanted
    assert not re.search(rf"^  {re.escape(alias)}\b(?!-)", serve.get_help(context), re.MULTILINE)


def test_every_option_of_the_command_has_a_key_or_a_reason() -> None:
    context = click.Context(serve)
    keys = serve.keys(context)  # type: ignore[attr-defined]  # the command's own class
    for parameter in serve.get_params(context):
        if not isinstance(parameter, click.Option) or parameter.hidden or not parameter.expose_value:
            continue
        assert parameter in keys.values() or parameter.name in ("config", "print_config"), parameter.name
    for key, option in keys.items():
        assert effective()[key] if key != "backend_options" else True
        if not isinstance(option, EngineOption) and not key.startswith(("tensor_parallel", "no_tensor_parallel")):
            assert option.envvar == f"POCKETLLM_{key.upper()}"


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
SCALARS = st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), TEXT)


@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)))
def test_any_value_survives_a_toml_file(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_text(value)}")["x"] == value
