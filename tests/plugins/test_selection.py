"""Who serves a checkpoint: explicit, automatic, and never silently another."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from pocketllm.engine_args import EngineArgs
from pocketllm.errors import (
    BackendUnavailableError,
    CheckpointError,
    ConfigurationError,
    PluginError,
    UnsupportedFeatureError,
)
from pocketllm.plugins.backend_options import checked_options
from pocketllm.plugins.registry import Registry
from pocketllm.plugins.selection import Selection, consider
from pocketllm.plugins.selection import select as select_backend
from pocketllm.types import BackendInfo, Offer, Refusal
from tests.plugins.toy_backends import Toy

CHECKPOINT: Any = SimpleNamespace(path="/m", format="gguf")
NO = Refusal(reason="It knows no such architecture.")


def select(*toys: Toy, **fields: Any) -> Selection:
    registry = Registry.of_objects(backends={toy.name: toy for toy in toys})
    return select_backend(registry, EngineArgs(model="/m", **fields), CHECKPOINT)


def test_auto_takes_the_best_offer_and_keeps_every_answer() -> None:
    selection = select(Toy("a", rank=10), Toy("b", rank=60), Toy("c", answer=NO))
    assert (selection.backend.name, selection.offer.rank) == ("b", 60)
    assert [(entry.name, entry.reason) for entry in selection.considered] == [
        ("a", "a can."),
        ("b", "b can."),
        ("c", NO.reason),
    ]


@pytest.mark.parametrize("backend", ["auto", "a"])
def test_a_backends_options_are_checked_once_for_its_probe_and_its_opening(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(info: BackendInfo, args: EngineArgs) -> dict[str, Any]:
        calls.append(info.name)
        return checked_options(info, args)

    monkeypatch.setattr("pocketllm.plugins.registry.checked_options", counted)
    toy = Toy("a")
    selection = select(
        toy, backend=backend, backend_options={"checkpoint_dir": "/m", "label": 5}, resolved_options={"num_threads": 1}
    )
    assert toy.seen is not None
    assert (toy.seen.model, toy.seen.backend) == ("/m", backend)
    assert toy.seen.backend_options == selection.args.backend_options == {"label": "5", "num_threads": 1}
    assert selection.args.backend == "a"
    assert selection.backend.open(selection.args, CHECKPOINT, lambda stage, fraction: None) is toy
    assert toy.seen is selection.args
    assert calls == ["a"]


def test_a_tie_goes_to_the_first_name() -> None:
    assert select(Toy("b"), Toy("a"), Toy("c")).backend.name == "a"


def test_rank_0_must_be_asked_for() -> None:
    assert select(Toy("a", rank=0), Toy("b", rank=1)).backend.name == "b"
    assert select(Toy("a", rank=0), Toy("b", rank=1), backend="a").backend.name == "a"
    with pytest.raises(BackendUnavailableError, match="a: only when asked for by name"):
        select(Toy("a", rank=0))


def test_without_an_offer_every_reason_is_listed() -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        select(Toy("a", answer=NO), Toy("b", formats=("safetensors",)), Toy("c", answer=RuntimeError("boom")))
    assert f"a: {NO.reason}" in caught.value.message
    assert "b: It reads safetensors checkpoints, and this one is gguf." in caught.value.message
    assert "c: Backend 'c' is broken: RuntimeError: boom." in caught.value.message


def test_without_a_backend_the_error_says_what_to_install() -> None:
    with pytest.raises(BackendUnavailableError, match="pip install"):
        select()


@pytest.mark.parametrize("answer", [RuntimeError("boom"), SystemExit(2), "yes"])
def test_a_broken_backend_is_never_passed_over_silently(answer: object, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        selection = select(Toy("broken", answer=answer), Toy("other"))
    assert selection.backend.name == "other"
    (entry,) = [entry for entry in selection.considered if entry.name == "broken"]
    assert entry.answer is None
    assert entry.state == "broken"
    assert "backend='auto' takes 'other' and passed over 'broken': Backend 'broken' is broken" in caplog.text


def test_an_incompatible_backend_is_never_passed_over_silently(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        selection = select(Toy("new", contract_version=(9, 0)), Toy("other"))
    assert selection.considered[0].state == "incompatible"
    assert "passed over 'new'" in caplog.text


def test_a_good_choice_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    select(Toy("a"), Toy("b", answer=NO))
    assert caplog.text == ""


def test_an_explicit_backend_is_the_only_one_asked() -> None:
    other = Toy("other", rank=100)
    selection = select(Toy("mine", rank=1), other, backend="mine")
    assert selection.backend.name == "mine"
    assert [entry.name for entry in selection.considered] == ["mine"]
    assert other.num_probes == 0


def test_an_explicit_backend_that_refuses_is_an_error_with_its_reason() -> None:
    with pytest.raises(
        UnsupportedFeatureError, match="'mine' cannot serve /m: It knows no such architecture"
    ) as caught:
        select(Toy("mine", answer=NO), Toy("other"), backend="mine")
    assert caught.value.param == "backend"


def test_an_explicit_backend_that_is_broken() -> None:
    with pytest.raises(PluginError, match="'mine' is broken"):
        select(Toy("mine", answer=RuntimeError("boom")), Toy("other"), backend="mine")


def test_an_explicit_backend_that_is_missing() -> None:
    with pytest.raises(BackendUnavailableError, match="'yours' is not installed"):
        select(Toy("mine"), backend="yours")


def test_a_word_about_the_checkpoint_is_a_refusal_for_auto_and_an_error_when_explicit() -> None:
    word = CheckpointError("The file is cut off.")
    selection = select(Toy("a", answer=word), Toy("b"))
    assert selection.considered[0].answer == Refusal(reason="The file is cut off.")
    with pytest.raises(CheckpointError):
        select(Toy("a", answer=word), backend="a")


@pytest.mark.parametrize("backend", ["auto", "a"])
def test_tensor_parallelism_is_refused_before_anybody_is_asked(backend: str) -> None:
    toy = Toy("a")
    with pytest.raises(UnsupportedFeatureError, match="tensor_parallel_size = 2") as caught:
        select(toy, backend=backend, tensor_parallel_size=2)
    assert caught.value.param == "tensor_parallel_size"
    assert toy.num_probes == 0


def test_the_device_is_checked_against_the_cards() -> None:
    gpu = Toy("gpu", devices=("cuda",), rank=90)
    assert select(gpu, Toy("cpu")).backend.name == "gpu"
    assert select(gpu, Toy("cpu"), device="cpu").backend.name == "cpu"
    with pytest.raises(UnsupportedFeatureError, match="runs on cuda, not on 'cpu'"):
        select(gpu, Toy("cpu"), device="cpu", backend="gpu")
    with pytest.raises(ConfigurationError, match="Did you mean 'cuda'") as caught:
        select(gpu, Toy("cpu"), device="cudda")
    assert caught.value.param == "device"


def test_a_card_without_devices_leaves_the_question_to_the_probe() -> None:
    assert select(Toy("open", devices=()), device="anything").backend.name == "open"


def test_options_choose_among_backends_but_an_unknown_one_is_a_mistake() -> None:
    a, b = Toy("a", rank=90, options=("num_threads",)), Toy("b", options=("num_streams",))
    selection = select(a, b, backend_options={"num_streams": 2})
    assert selection.backend.name == "b"
    assert "has no option 'num_streams'" in selection.considered[0].reason
    with pytest.raises(ConfigurationError, match="Did you mean 'num_streams'") as caught:
        select(a, b, backend_options={"num_stream": 2})
    assert caught.value.param == "backend_options.num_stream"
    with pytest.raises(ConfigurationError, match=r"unknown to backend 'a'\. Did you mean 'num_threads'"):
        select(a, b, backend="a", backend_options={"num_thread": 2})


def test_a_value_of_the_wrong_type_is_an_error_when_explicit() -> None:
    with pytest.raises(ConfigurationError, match="not a whole number"):
        select(Toy("a"), backend="a", backend_options={"num_threads": "many"})


def test_an_option_that_a_broken_backend_may_know_is_no_mistake() -> None:
    with pytest.raises(BackendUnavailableError, match="has no option 'mystery'"):
        select(Toy("a"), Toy("old", contract_version=(0, 1)), backend_options={"mystery": 1})


def test_consider_asks_all_it_is_given() -> None:
    registry = Registry.of_objects(backends={"a": Toy("a"), "b": Toy("b", answer=NO)})
    considered = consider(registry, EngineArgs(model="/m"), CHECKPOINT, ["a", "b"])
    assert [type(entry.answer) for entry in considered] == [Offer, Refusal]
