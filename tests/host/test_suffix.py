"""A completion in front of a suffix, where the checkpoint has the tokens for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from pocketllm.errors import ContextLengthError, UnsupportedFeatureError
from pocketllm.protocol import completion_request
from tests.host.manual_engine import FULL, DrivenHost, ManualBackend

CAPABLE = msgspec.structs.replace(FULL, supports_suffix=True)
BODY = {"prompt": "def f(", "suffix": "return x"}


def _with_tokens(toy_path: Path, folder: Path, surfaces: tuple[str, str, str]) -> Path:
    shutil.copytree(toy_path, folder, dirs_exist_ok=True)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    size = max(*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])) + 1
    for number, surface in enumerate(surfaces):
        tokenizer["added_tokens"].append({
            "id": size + number, "content": surface, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True,
        })  # fmt: skip
    path.write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize(
    "surfaces",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ],
)
def test_a_suffix_is_put_between_the_checkpoints_three_tokens(
    toy_path: Path, tmp_path: Path, surfaces: tuple[str, str, str]
) -> None:
    with DrivenHost(_with_tokens(toy_path, tmp_path, surfaces), ManualBackend(CAPABLE)) as driven:
        assert driven.host.capabilities.supports_suffix
        (request,) = completion_request(BODY, driven.host.capabilities)
        driven.submit_request(request)
        tokenizer = driven.host.tokenizer
        before, between, behind = (tokenizer.token_id(surface) for surface in surfaces)
        expected = [before, *driven.ids("def f("), between, *driven.ids("return x"), behind]
        assert list(driven.engine.requests[0].prompt_tokens) == expected
        # Control tokens in a person's text are text.
        (request,) = completion_request({"prompt": surfaces[2], "suffix": "x"}, driven.host.capabilities)
        driven.submit_request(request)
        assert driven.engine.requests[1].prompt_tokens.count(behind) == 1
        (request,) = completion_request({"prompt": "a", "suffix": "x" * 1000}, driven.host.capabilities)
        with pytest.raises(ContextLengthError):
            driven.submit_request(request)


def test_a_checkpoint_without_the_tokens_refuses(toy_path: Path) -> None:
    with DrivenHost(toy_path, ManualBackend(CAPABLE)) as driven:
        assert not driven.host.capabilities.supports_suffix
        with pytest.raises(UnsupportedFeatureError) as caught:
            completion_request(BODY, driven.host.capabilities)
        assert caught.value.param == "suffix"
        (plain,) = completion_request({"prompt": "a", "suffix": ""}, driven.host.capabilities)
        driven.submit_request(plain)
        assert list(driven.engine.requests[0].prompt_tokens) == driven.ids("a")
