"""Loading judges a plugin and never raises for its faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketllm.hookspecs import hookimpl
from pocketllm.plugins.discovery import BACKENDS_GROUP, PLUGINS_GROUP, Plugin, PluginState
from pocketllm.plugins.loading import load_plugin
from tests.plugins.fake_distributions import BROKEN, WHY_BROKEN, backend_source, install_broken


def backend(name: str, value: str | None = None) -> Plugin:
    return Plugin(name=name, group=BACKENDS_GROUP, value=value or name, distribution=name)


def test_a_backend_in_order_is_loaded(site: Path) -> None:
    (site / "in_order.py").write_text(backend_source("in_order"))
    loaded = load_plugin(backend("in_order"), {})
    assert loaded.plugin.state == PluginState.OK
    assert loaded.plugin.hooks == ("pocketllm_backend", "pocketllm_open", "pocketllm_probe")
    assert loaded.plugin.info is not None
    assert loaded.plugin.info.devices == ("cpu", "abacus")
    assert loaded.target is not None


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_is_found(site: Path, name: str) -> None:
    install_broken(site, name)
    value = "a_class:Backend" if name == "a_class" else name
    loaded = load_plugin(backend(name, value), {})
    assert loaded.plugin.state == PluginState.BROKEN
    assert WHY_BROKEN[name] in loaded.plugin.error
    assert (loaded.target, loaded.relay) == (None, None)


@pytest.mark.parametrize("name", ["import_error", "exits", "raising_card"])
def test_what_raised_comes_with_its_traceback(site: Path, name: str) -> None:
    install_broken(site, name)
    error = load_plugin(backend(name), {}).plugin.error
    assert error.startswith("Traceback")
    assert f"{name}.py" in error


def test_an_attribute_that_is_not_there(site: Path) -> None:
    (site / "half.py").write_text("")
    assert "has no attribute 'plugin'" in load_plugin(backend("half", "half:plugin"), {}).plugin.reason


def test_another_major_version_is_incompatible_before_its_hooks_are_judged(site: Path) -> None:
    card = "\n@hookimpl\ndef pocketllm_backend():\n    return BackendInfo(name='future', contract_version=(2, 3))\n"
    hook = "\n@hookimpl\ndef pocketllm_of_the_future(): ...\n"
    (site / "future.py").write_text(backend_source("future", more=card + hook))
    loaded = load_plugin(backend("future"), {})
    assert loaded.plugin.state == PluginState.INCOMPATIBLE
    assert "version 2.3 of the hook contract" in loaded.plugin.error
    assert loaded.relay is None


def test_another_minor_version_may_bring_optional_hooks(site: Path) -> None:
    card = "\n@hookimpl\ndef pocketllm_backend():\n    return BackendInfo(name='minor', contract_version=(1, 9))\n"
    hook = "\n@hookimpl(optionalhook=True)\ndef pocketllm_of_the_future(): ...\n"
    (site / "minor.py").write_text(backend_source("minor", more=card + hook))
    loaded = load_plugin(backend("minor"), {})
    assert loaded.plugin.state == PluginState.OK
    assert "pocketllm_of_the_future" not in loaded.plugin.hooks


def test_what_is_broken_or_disabled_already_is_not_imported() -> None:
    for state in (PluginState.BROKEN, PluginState.DISABLED, PluginState.INCOMPATIBLE):
        plugin = Plugin(name="x", group=BACKENDS_GROUP, value="a_module_that_nobody_has", state=state, error="why")
        assert load_plugin(plugin, {}).plugin == plugin


class _Extension:
    @hookimpl(wrapper=True)
    def pocketllm_generate(self, call: object) -> object:
        return (yield)  # type: ignore[misc]  # the generator protocol of a wrapper


class _NoHook:
    pass


class _Helper:
    """A function with our prefix that is like no hook is the author's own business."""

    @hookimpl
    def pocketllm_resolve_model(self, name: str) -> None: ...

    def pocketllm_x(self) -> None: ...


def extension(target: object) -> Plugin:
    return load_plugin(Plugin(name="x", group=PLUGINS_GROUP, value=""), {}, target).plugin


def test_an_extension_may_wrap_engine_hooks() -> None:
    assert extension(_Extension()).hooks == ("pocketllm_generate",)


def test_an_extension_without_a_hook_is_a_mistake() -> None:
    assert "implements no hook" in extension(_NoHook()).error


def test_own_functions_are_left_alone() -> None:
    assert extension(_Helper()).hooks == ("pocketllm_resolve_model",)


def test_a_backend_in_the_wrong_group(site: Path) -> None:
    (site / "astray.py").write_text(backend_source("astray"))
    loaded = load_plugin(Plugin(name="astray", group=PLUGINS_GROUP, value="astray"), {})
    assert "group pocketllm.backends" in loaded.plugin.error
