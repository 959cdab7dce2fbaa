"""The tables of docs/operating.md: options, metrics, bounds and sizes, each from the code that decides it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import click

from pocketllm.checkpoint.gguf_types import TENSOR_TYPES_BY_NAME
from pocketllm.cli.engine_options import EngineOption
from pocketllm.cli.group import program
from pocketllm.engine_env import ENGINE_ENVIRONMENT
from pocketllm_server.config.config_file import ALIASES, ConfiguredCommand
from tests.docs.server import server


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line).strip() + " |" for line in lines)


def code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


# -- options ------------------------------------------------------------------------------------------------------


@cache
def serve_command() -> ConfiguredCommand:
    command = program.get_command(click.Context(program), "serve")
    assert isinstance(command, ConfiguredCommand)
    return command


def options() -> list[click.Option]:
    """Every option of ``pocketllm serve`` that ``--help`` lists."""
    return [each for each in serve_command().params if isinstance(each, click.Option) and not each.hidden]


def variables(option: click.Option) -> tuple[str, ...]:
    """The environment variables that set an option, the first that is found first."""
    if isinstance(option, EngineOption):
        return ENGINE_ENVIRONMENT.get(option.field, ())
    return (str(option.envvar),) if option.envvar else ()


def default(option: click.Option) -> str:
    """As ``--help`` says it; empty when there is none."""
    said = re.search(r"\[default: (.+?)\]", option.help or "")
    if said:
        return said[1]
    # click marks an option without a default with a value of its own.
    value = option.default if isinstance(option.default, bool | int | float | str) else ""
    if isinstance(value, bool):
        return ("on" if value else "off") if option.secondary_opts else ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _row(option: click.Option) -> list[str]:
    meaning = re.sub(r"\s*\[default: .+?\]", "", option.help or "")
    if isinstance(option.type, click.Choice):
        meaning += f" One of {code(option.type.choices)}."
    return [code([*option.opts, *option.secondary_opts]), code(variables(option)), default(option), meaning]


_HEAD = ("flag", "variable", "default", "")


def server_options() -> str:
    return markdown(_HEAD, [_row(option) for option in options() if not isinstance(option, EngineOption)])


def engine_options() -> str:
    return markdown(_HEAD, [_row(option) for option in options() if isinstance(option, EngineOption)])


def spellings() -> str:
    hidden = [each for each in serve_command().params if isinstance(each, click.Option) and each.hidden]
    rows = [[code([theirs]), code([ours])] for theirs, ours in ALIASES.items()]
    return markdown(
        ("vLLM's spelling", "ours"),
        [*rows, *([code(each.opts), "without effect, on the command line alone"] for each in hidden)],
    )


# -- metrics ------------------------------------------------------------------------------------------------------


class Metric(NamedTuple):
    name: str
    kind: str
    labels: str
    doc: str


def metrics_of(text: str) -> list[Metric]:
    """The families of a page in Prometheus' format, with the labels that its samples have."""
    docs = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    found = []
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE):
        samples = re.findall(rf"^{name}(?:_bucket|_sum|_count)?\{{(.*)\}} ", text, re.MULTILINE)
        labels = dict.fromkeys(label for sample in samples for label in re.findall(r"(\w+)=", sample) if label != "le")
        found.append(Metric(name, kind, code(labels), docs[name]))
    return found


def metrics() -> str:
    """From a server that has answered, refused and not found something."""
    with server("--backend", "echo") as running:
        running.until_ready()
        assert running.chat("Hello", stream=True).status_code == 200
        assert running.chat("Hello", max_tokens="many").status_code == 400
        text = running.client.get("/metrics").text
    return markdown(("metric", "type", "labels", ""), [[code([name]), *rest] for name, *rest in metrics_of(text)])


# -- bounds -------------------------------------------------------------------------------------------------------

BOUNDS = (
    ("choices of a request (`n`)", "pocketllm.sampling_params:MAX_CHOICES"),
    ("alternatives beside a log probability", "pocketllm.sampling_params:MAX_TOP_LOGPROBS"),
    ("stop strings of a request", "pocketllm.sampling_params:MAX_STOPS"),
    ("characters of a stop string", "pocketllm.sampling_params:MAX_STOP_CHARS"),
    ("seconds of `timeout`", "pocketllm.protocol:MAX_TIMEOUT_S"),
    ("characters of `cache_salt`", "pocketllm.protocol:MAX_SALT_CHARS"),
    ("nested lists and objects of a body", "pocketllm_server.wire.decode:MAX_DEPTH"),
    ("bytes of a JSON schema", "pocketllm.structured.schema_keywords:MAX_SCHEMA_BYTES"),
    ("characters of a regular expression", "pocketllm.structured.kinds:MAX_REGEX_CHARS"),
    ("strings of `structured_outputs[\"choice\"]`", "pocketllm.structured.kinds:MAX_CHOICES"),
    ("seconds that a chat template may run", "pocketllm.text.render_limits:MAX_SECONDS"),
    ("characters that a chat template may write", "pocketllm.text.render_limits:MAX_OUTPUT_CHARS"),
    ("unread pieces of a stream", "pocketllm.host.record:DEFAULT_MAX_UNREAD_DELTAS"),
)  # fmt: skip


def bounds() -> str:
    rows = []
    for what, target in BOUNDS:
        module, _, name = target.partition(":")
        rows.append([what, f"{getattr(importlib.import_module(module), name):,}"])
    return markdown(("bound", "at most"), rows)


# -- sizes --------------------------------------------------------------------------------------------------------


class Model(NamedTuple):
    name: str
    num_parameters: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int

    def bytes_per_position(self, value_bytes: float = 2) -> float:
        """Keys and values of one position in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * value_bytes


MODELS = (
    Model("SmolLM2 135M", 134_515_008, 30, 3, 64, 8192),
    Model("Llama 3.2 1B", 1_235_814_400, 16, 8, 64, 131072),
    Model("Llama 3.1 8B", 8_030_261_248, 32, 8, 128, 131072),
)
FORMS = ("F32", "F16", "Q8_0", "Q6_K", "Q4_K")
CONTEXTS = (2048, 8192, 32768, 131072)


def weight_sizes() -> str:
    forms = [TENSOR_TYPES_BY_NAME[name] for name in FORMS]
    rows = []
    for model in MODELS:
        sizes = [_size(model.num_parameters * form.block_bytes / form.block_elements) for form in forms]
        rows.append([model.name, *sizes])
    return markdown(("weights", *FORMS), rows)


def cache_sizes() -> str:
    rows = []
    for model in MODELS:
        per_position = model.bytes_per_position()
        sizes = [_size(per_position * length) if length <= model.max_model_len else "" for length in CONTEXTS]
        rows.append([model.name, f"{per_position / 1024:g} KiB", *sizes])
    return markdown(("model", "one position", *(f"{length:,} positions" for length in CONTEXTS)), rows)


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
