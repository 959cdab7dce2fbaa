"""The registry answers one plugin at a time, and says plainly what is wrong with one."""

from __future__ import annotations

import logging
import threading
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pocketllm.engine_args import EngineArgs
from pocketllm.errors import BackendUnavailableError, ConfigurationError, PluginError, UnsupportedFeatureError
from pocketllm.hookspecs import hookimpl
from pocketllm.plugins.discovery import BACKENDS_GROUP, PLUGINS_GROUP, Plugin, PluginState, discover
from pocketllm.plugins.registry import Registry, get_registry
from pocketllm.types import CommandPart, ModelSource
from tests.plugins.fake_distributions import BROKEN, WHY_BROKEN, backend_source, install, install_broken
from tests.plugins.toy_backends import Toy

ROOT = Path(__file__).parents[2]
CHECKPOINT: Any = SimpleNamespace(path="/m", format="gguf")


class Commands:
    def __init__(self, answer: object) -> None:
        self._answer = answer

    @hookimpl
    def pocketllm_commands(self) -> object:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class Resolver:
    def __init__(self, answer: object) -> None:
        self._answer = answer

    @hookimpl
    def pocketllm_resolve_model(self, name: str) -> object:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class Observer:
    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None: ...


def state_of(registry: Registry, name: str) -> str:
    (plugin,) = [plugin for plugin in registry.plugins if plugin.name == name]
    return plugin.state


def test_names_come_from_metadata_and_loading_from_asking(site: Path) -> None:
    install(site, "toy", backend_source("toy"))
    install(site, "sad", "raise ImportError('no library')")
    registry = Registry(environ={})
    assert {"toy", "sad"} <= set(registry.backend_names())
    assert state_of(registry, "toy") == PluginState.FOUND
    assert registry.backend("toy").info.devices == ("cpu", "abacus")
    assert state_of(registry, "toy") == PluginState.OK
    assert state_of(registry, "sad") == PluginState.FOUND


@pytest.mark.parametrize("name", BROKEN)
def test_asking_for_a_broken_backend_says_why(site: Path, name: str) -> None:
    install_broken(site, name)
    with pytest.raises(PluginError) as caught:
        Registry(environ={}).backend(name)
    assert WHY_BROKEN[name] in caught.value.message
    assert f"Backend '{name}' ({name} 1.0) is broken" in caught.value.message
    assert "pocketllm plugins" in caught.value.message


def test_a_traceback_goes_with_the_error(site: Path) -> None:
    install_broken(site, "import_error")
    with pytest.raises(PluginError, match="Traceback"):
        Registry(environ={}).backend("import_error")


def test_a_backend_that_is_not_installed() -> None:
    registry = Registry.of_objects(backends={"toy": Toy("toy"), "echo": Toy("echo")})
    with pytest.raises(BackendUnavailableError, match=r"Did you mean 'toy'\? Known backends: echo, toy"):
        registry.backend("tay")


def test_a_backend_that_this_project_publishes_can_be_installed_with_one_command() -> None:
    projects = [tomllib.loads(path.read_text())["project"] for path in ROOT.glob("pocketllm-*/pyproject.toml")]
    published = {
        name: project["name"]
        for project in projects
        for name in project.get("entry-points", {}).get("pocketllm.backends", {})
    }
    assert published.keys() == {"cpp", "torch"}
    for name, distribution in published.items():
        with pytest.raises(BackendUnavailableError, match=f"not installed: pip install {distribution}, or take"):
            Registry.of_objects().backend(name)


def test_a_disabled_backend_is_refused_with_the_variable(site: Path) -> None:
    install(site, "toy", backend_source("toy"))
    registry = Registry(environ={"POCKETLLM_PLUGINS": "smollm2"})
    assert "toy" not in registry.backend_names()
    with pytest.raises(BackendUnavailableError, match="disabled: POCKETLLM_PLUGINS names smollm2"):
        registry.backend("toy")


def test_an_incompatible_backend_is_refused_with_both_versions() -> None:
    registry = Registry.of_objects(backends={"old": Toy("old", contract_version=(0, 4))})
    with pytest.raises(PluginError, match=r"is incompatible: It is built for version 0\.4"):
        registry.backend("old")


def test_load_all_leaves_nothing_unjudged(site: Path) -> None:
    for name in BROKEN:
        install_broken(site, name)
    install(site, "toy", backend_source("toy"))
    states = {plugin.name: plugin.state for plugin in Registry(environ={}).load_all()}
    assert {states[name] for name in BROKEN} == {PluginState.BROKEN}
    assert states["toy"] == states["smollm2"] == PluginState.OK
    assert PluginState.FOUND not in states.values()


def test_checked_arguments_have_typed_options_and_the_models_place() -> None:
    toy = Toy("toy")
    backend = Registry.of_objects(backends={"toy": toy}).backend("toy")
    args = EngineArgs(backend_options={"checkpoint_dir": "/m", "label": 5}, resolved_options={"num_threads": 1})
    checked = backend.checked(args)
    assert (checked.model, checked.backend_options) == ("/m", {"label": "5", "num_threads": 1})
    assert backend.checked(checked) == checked
    with pytest.raises(ConfigurationError, match="has no option 'threads'"):
        backend.checked(EngineArgs(model="/m", backend_options={"threads": 1}))


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (RuntimeError("boom"), "RuntimeError: boom"),
        (SystemExit(1), "SystemExit"),
        (None, "returned NoneType, not an Offer or a Refusal"),
        (True, "returned bool"),
    ],
)
def test_a_probe_that_raises_or_answers_nonsense_breaks_its_plugin(answer: object, part: str) -> None:
    registry = Registry.of_objects(backends={"toy": Toy("toy", answer=answer)})
    backend = registry.backend("toy")
    with pytest.raises(PluginError, match="is broken"):
        backend.probe(CHECKPOINT, EngineArgs(model="/m"))
    (plugin,) = registry.plugins
    assert plugin.state == PluginState.BROKEN
    assert part in plugin.error
    with pytest.raises(PluginError):
        registry.backend("toy")


def test_a_rank_out_of_range_breaks_the_plugin() -> None:
    registry = Registry.of_objects(backends={"toy": Toy("toy", rank=101)})
    with pytest.raises(PluginError, match="outside 0 to 100"):
        registry.backend("toy").probe(CHECKPOINT, EngineArgs(model="/m"))


def test_a_probes_own_word_is_no_fault() -> None:
    registry = Registry.of_objects(backends={"toy": Toy("toy", answer=UnsupportedFeatureError("Not today."))})
    backend = registry.backend("toy")
    with pytest.raises(UnsupportedFeatureError, match="Not today"):
        backend.probe(CHECKPOINT, EngineArgs(model="/m"))
    assert state_of(registry, "toy") == PluginState.OK


def test_an_open_that_returns_nothing_is_an_error() -> None:
    registry = Registry.of_objects(backends={"toy": Toy("toy", opens=False)})
    with pytest.raises(PluginError, match="opened nothing"):
        registry.backend("toy").open(EngineArgs(model="/m"), CHECKPOINT, lambda stage, fraction: None)


def test_extensions_are_those_with_engine_hooks_by_name() -> None:
    first, second = Observer(), Observer()
    registry = Registry.of_objects(extensions={"b": second, "a": first, "commands": Commands([]), "bad": object()})
    assert registry.extensions() == [("a", first), ("b", second)]
    assert state_of(registry, "bad") == PluginState.BROKEN


def test_a_broken_extension_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry.of_objects(extensions={"bad": object()})
    registry.extensions()
    registry.extensions()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "Plugin 'bad' is broken: It implements no hook: decorate its functions with pocketllm.hookspecs.hookimpl. "
        "See `pocketllm plugins`."
    ]


def test_commands_come_in_the_order_of_their_plugins() -> None:
    dance = CommandPart(name="dance", target="some.module:dance", help="Dance.")
    sing = CommandPart(name="sing", target="some.module:sing", help="Sing.")
    registry = Registry.of_objects(extensions={"b": Commands([sing]), "a": Commands((dance,))})
    assert registry.commands() == [dance, sing]


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (RuntimeError("boom"), "boom"),
        ("sing", "did not return a list of CommandPart"),
        ([CommandPart(name="run", target="m:run", help="")], "brings the command 'run', which exists already"),
        ([CommandPart(name="sing", target="m", help="")], "is not 'module:attribute'"),
    ],
)
def test_bad_commands_break_their_plugin_alone(answer: object, part: str) -> None:
    good = CommandPart(name="dance", target="some.module:dance", help="Dance.")
    registry = Registry.of_objects(extensions={"bad": Commands(answer), "good": Commands([good])})
    assert registry.commands(reserved=("run",)) == [good]
    (bad,) = [plugin for plugin in registry.plugins if plugin.name == "bad"]
    assert bad.state == PluginState.BROKEN
    assert part in bad.error


def test_the_first_model_answer_wins_and_a_raising_resolver_is_broken() -> None:
    source = ModelSource(path="/", name="x", origin="a test")
    later = ModelSource(path="/elsewhere", name="x")
    registry = Registry.of_objects(
        extensions={
            "a": Resolver(None),
            "b": Resolver(RuntimeError("boom")),
            "c": Resolver("/path"),
            "d": Resolver(source),
            "e": Resolver(later),
        }
    )
    assert registry.ask_model("x") == source
    assert [state_of(registry, name) for name in "bc"] == [PluginState.BROKEN] * 2


def test_a_plugin_is_loaded_once_by_many_threads(site: Path) -> None:
    source = "import time\nLOADS = globals().get('LOADS', 0) + 1\ntime.sleep(0.05)\n"
    install(site, "slow", source + backend_source("slow"))
    registry = Registry(environ={})
    infos = []
    threads = [threading.Thread(target=lambda: infos.append(registry.backend("slow").info)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(infos) == 8
    assert len({id(info) for info in infos}) == 1


def test_the_registry_of_a_child_sees_what_its_parent_saw(site: Path) -> None:
    install(site, "toy", backend_source("toy"))
    parent = Registry(environ={})
    parent.backend("toy")
    child = Registry(parent.plugins, environ={})
    assert child.backend("toy").info == parent.backend("toy").info


def test_one_registry_per_process() -> None:
    assert get_registry() is get_registry()
    assert {plugin.name for plugin in get_registry().plugins} >= {plugin.name for plugin in discover() if plugin.name}


def test_the_groups_do_not_mix() -> None:
    plugins = [Plugin(name="same", group=group, value="") for group in (BACKENDS_GROUP, PLUGINS_GROUP)]
    registry = Registry(plugins, targets={"same": Toy("same")})
    assert registry.backend("same").name == "same"
    assert registry.extensions() == []
