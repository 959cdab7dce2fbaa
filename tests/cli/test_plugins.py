"""``pocketllm plugins`` lists everything, broken things first of all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.programs import pocketllm
from tests.plugins.fake_distributions import BROKEN, WHY_BROKEN, backend_source, install, install_broken


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every broken distribution at once, one in order among them, and two with bad metadata."""
    folder = tmp_path_factory.mktemp("site")
    for name in BROKEN:
        install_broken(folder, name)
    install(folder, "in_order", backend_source("in_order", rank=1))
    install(folder, "bad_line", "", entry_points="[pocketllm.backends]\nbad_line\n")
    install(folder, "bad_value", "", entry_points="[pocketllm.backends]\nbad_value = not a module\n")
    future = "\n@hookimpl\ndef pocketllm_backend():\n    return BackendInfo(name='future', contract_version=(7, 0))\n"
    install(folder, "future", backend_source("future", more=future))
    return folder


def test_json_says_what_is_wrong_with_each(site: Path) -> None:
    done = pocketllm("plugins", "--json", site=site)
    assert done.returncode == 0
    listed = {plugin["name"]: plugin for plugin in json.loads(done.stdout)}
    for name in BROKEN:
        assert listed[name]["state"] == "broken"
        assert WHY_BROKEN[name] in listed[name]["error"]
    assert listed["bad_line"]["state"] == listed["bad_value"]["state"] == "broken"
    assert listed["future"]["state"] == "incompatible"
    in_order = listed["in_order"]
    assert (in_order["state"], in_order["kind"], in_order["version"]) == ("ok", "backend", "1.0")
    assert in_order["hooks"] == ["pocketllm_backend", "pocketllm_open", "pocketllm_probe"]
    assert in_order["backend"]["devices"] == ["cpu", "abacus"]
    assert (listed["smollm2"]["state"], listed["smollm2"]["kind"]) == ("ok", "plugin")


def test_a_person_reads_the_plugins_as_a_table(site: Path) -> None:
    done = pocketllm("plugins", site=site)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["NAME", "KIND", "STATE", "DISTRIBUTION", "HOOKS"]
    row = next(line for line in lines if line.startswith("in_order "))
    assert row.split(maxsplit=5) == ["in_order", "backend", "ok", "in_order", "1.0", "backend, open, probe"]
    assert "import_error is broken:\n  Traceback (most recent call last):" in done.stdout
    assert "ModuleNotFoundError: No module named 'a_module_that_nobody_has'" in done.stdout


def test_what_is_disabled_is_not_imported(site: Path) -> None:
    done = pocketllm("plugins", "--json", site=site, POCKETLLM_PLUGINS="in_order,misspelled")
    listed = json.loads(done.stdout)
    assert {plugin["name"] for plugin in listed if plugin["state"] == "ok"} == {"in_order"}
    assert {plugin["state"] for plugin in listed} == {"ok", "disabled"}


def test_a_selected_name_that_does_not_exist() -> None:
    done = pocketllm("plugins", POCKETLLM_PLUGINS="smollm3")
    assert "POCKETLLM_PLUGINS names 'smollm3', which no installed distribution provides." in done.stdout
    assert "No backend is ready: pip install 'pocketllm-core[cpp]'" in done.stdout


def test_hook_calls_are_traced(site: Path) -> None:
    done = pocketllm("plugins", site=site, POCKETLLM_PLUGINS="in_order", POCKETLLM_TRACE_HOOKS="1")
    assert "hook in_order: pocketllm_backend()" in done.stderr
