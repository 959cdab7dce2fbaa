"""Metadata is read without importing anything, and one bad file takes nothing else away."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import msgspec
import pytest

from pocketllm.plugins.discovery import BACKENDS_GROUP, PLUGINS_GROUP, Plugin, PluginState, discover, unknown_names
from tests.plugins.fake_distributions import backend_source, install


def found(name: str, environ: dict[str, str] | None = None) -> Plugin:
    (plugin,) = [plugin for plugin in discover(environ or {}) if plugin.name == name]
    return plugin


def test_own_plugins_are_found() -> None:
    plugins = {(plugin.group, plugin.name): plugin for plugin in discover({})}
    smollm2 = plugins[PLUGINS_GROUP, "smollm2"]
    assert (smollm2.distribution, smollm2.value) == ("pocketllm-core", "pocketllm.model_sources.smollm2")
    assert smollm2.state == PluginState.FOUND
    assert smollm2.version


def test_discovery_reads_metadata_and_imports_nothing(site: Path) -> None:
    install(site, "quiet", "raise AssertionError('imported')")
    plugin = found("quiet")
    assert plugin == Plugin(name="quiet", group=BACKENDS_GROUP, value="quiet", distribution="quiet", version="1.0")
    assert "quiet" not in sys.modules


def test_extras_and_comments_and_foreign_groups_are_passed_over(site: Path) -> None:
    text = (
        "# comment\n[console_scripts]\nnope = nope:main\n\n[pocketllm.backends]\n; comment\ngood = good:plugin [gpu]\n"
    )
    install(site, "good", "", entry_points=text)
    assert found("good").value == "good:plugin"
    assert "nope" not in {plugin.name for plugin in discover({})}


@pytest.mark.parametrize(
    ("line", "name", "part"),
    [
        ("no equals sign", "no equals sign", "has no name"),
        ("spaced = not a module", "spaced", "neither 'module' nor 'module:attribute'"),
        ("empty =", "empty", "neither 'module' nor 'module:attribute'"),
    ],
)
def test_a_bad_line_breaks_that_entry_alone(site: Path, line: str, name: str, part: str) -> None:
    install(site, "mixed", "", entry_points=f"[pocketllm.backends]\n{line}\nmixed = mixed\n")
    plugin = found(name)
    assert plugin.state == PluginState.BROKEN
    assert part in plugin.error
    assert "'mixed'" in plugin.error
    assert found("mixed").state == PluginState.FOUND


def test_a_file_that_is_not_text(site: Path) -> None:
    install(site, "binary", "", entry_points=b"[pocketllm.backends]\nbinary = binary\n\xff\xfe = x\n")
    plugin = found("binary")
    assert plugin.state == PluginState.BROKEN
    assert "not UTF-8" in plugin.error


def test_a_distribution_without_metadata_is_listed_under_its_folders_name(site: Path) -> None:
    install(site, "nameless", backend_source("nameless"), metadata="")
    assert found("nameless").distribution == "nameless"


def test_the_first_of_two_copies_counts(site: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    install(site, "twice", "", version="2.0")
    install(other, "twice", "", version="1.0")
    sys.path.append(str(other))
    try:
        assert found("twice").version == "2.0"
    finally:
        sys.path.remove(str(other))


def test_a_name_claimed_by_two_distributions_belongs_to_neither(site: Path) -> None:
    install(site, "first", "", entry_points="[pocketllm.backends]\nshared = first\n")
    install(site, "second", "", entry_points="[pocketllm.backends]\nshared = second\n")
    plugins = [plugin for plugin in discover({}) if plugin.name == "shared"]
    assert [plugin.state for plugin in plugins] == [PluginState.BROKEN] * 2
    assert "claimed by first 1.0 and second 1.0: uninstall" in plugins[0].error


class TestPluginsVariable:
    def test_without_the_variable_every_plugin_is_found(self) -> None:
        assert all(plugin.state == PluginState.FOUND for plugin in discover({}))

    def test_an_empty_variable_disables_every_plugin(self) -> None:
        plugins = discover({"POCKETLLM_PLUGINS": ""})
        assert plugins
        assert all(plugin.state == PluginState.DISABLED for plugin in plugins)

    @pytest.mark.parametrize("name", ["smollm2", "pocketllm-core"])
    def test_plugins_are_selected_by_entry_point_or_distribution(self, name: str) -> None:
        environ = {"POCKETLLM_PLUGINS": f" {name} ,"}
        states = {plugin.name: plugin.state for plugin in discover(environ)}
        assert states.pop("smollm2") == PluginState.FOUND
        assert set(states.values()) <= {PluginState.DISABLED}

    def test_a_name_that_matches_nothing_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        environ = {"POCKETLLM_PLUGINS": "smollm2,smolm3"}
        with caplog.at_level(logging.WARNING):
            plugins = discover(environ)
        assert unknown_names(plugins, environ) == ["smolm3"]
        assert "'smolm3'" in caplog.text


def test_a_plugin_survives_msgpack() -> None:
    plugin = found("smollm2")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plugin), type=Plugin) == plugin
