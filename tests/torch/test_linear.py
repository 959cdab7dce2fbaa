"""Every storage form of a linear layer against the plain product, and the choice among them."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from pocketllm_torch.layers import linear_forms
from pocketllm_torch.layers.linear import LONG_ROWS, DenseLinear, Linear, TwoFormLinear, WidenedHalfLinear
from pocketllm_torch.weights import long_chunks
from pocketllm_torch.weights.long_chunks import bfloat16_speedup, choose_long_chunks
from pocketllm_torch.weights.precision import choose_precision
from tests.torch.driving import Driver
from tests.torch.tiny_llama import TinyLlama

CPU = torch.device("cpu")
FORMS = {
    "float32": ("float32", "float16", 1e-6),
    "float16": ("float16", "float16", 1e-3),
    "float16, long float32": ("float16", "float32", 1e-3),
    "float16, long bfloat16": ("float16", "bfloat16", 2e-2),
    "bfloat16": ("bfloat16", "float16", 2e-2),
}
MISSING = "no such instructions"


@pytest.fixture
def bare_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any packed form."""
    monkeypatch.setattr(linear_forms, "missing_packed_half", lambda: MISSING)
    monkeypatch.setattr(linear_forms, "missing_packed_bfloat16", lambda: MISSING)
    monkeypatch.setattr(long_chunks, "missing_packed_bfloat16", lambda: MISSING)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7, LONG_ROWS - 1, LONG_ROWS, LONG_ROWS + 3])
@pytest.mark.parametrize("form", FORMS)
def test_forms_equal_the_product(form: str, rows: int, with_bias: bool) -> None:
    check_form(form, rows, with_bias)


@pytest.mark.usefixtures("bare_cpu")
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_forms_equal_the_product_where_none_is_packed(form: str, with_bias: bool) -> None:
    for rows in (3, LONG_ROWS):
        check_form(form, rows, with_bias)


def check_form(form: str, rows: int, with_bias: bool) -> None:
    dtype, long_form, tolerance = FORMS[form]
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn((75, 96), generator=generator) * 0.1
    bias = torch.randn(75, generator=generator) if with_bias else None
    x = torch.randn((rows, 96), generator=generator)
    precision = choose_precision(dtype, CPU, long_form)
    layer = precision.linear(weight, bias)
    assert layer.out_features == 75
    y = layer(x.to(precision.compute_dtype))
    assert y.dtype == precision.compute_dtype
    expected = F.linear(x, weight, bias)
    assert float((y.float() - expected).abs().max()) < tolerance * float(expected.abs().max())


def test_the_row_count_decides_between_two_forms() -> None:
    calls: list[str] = []

    class Named:
        out_features = 1

        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(self.name)
            return x

    layer: Linear = TwoFormLinear(Named("short"), Named("long"))
    for rows in (1, LONG_ROWS - 1, LONG_ROWS, 1000):
        layer(torch.empty((rows, 1)))
    assert calls == ["short", "short", "long", "long"]


def test_a_head_gets_no_second_copy() -> None:
    precision = choose_precision("float16", CPU, "float32")
    weight = torch.ones((4, 4))
    assert isinstance(precision.linear(weight, None), TwoFormLinear)
    assert not isinstance(precision.linear(weight, None, long_chunks=False), TwoFormLinear)
    assert isinstance(choose_precision("float32", CPU).linear(weight, None), DenseLinear)


def test_what_was_asked_for_is_taken() -> None:
    for option in ("float16", "float32", "bfloat16"):
        assert choose_long_chunks(option, 10**15, deterministic=True) == option


def test_a_large_model_and_the_deterministic_mode_keep_one_copy() -> None:
    assert choose_long_chunks("auto", 10**15, deterministic=False) == "float16"
    assert choose_long_chunks("auto", 1000, deterministic=True) == "float16"


@pytest.mark.parametrize("speedup, choice", [(0.7, "float32"), (1.2, "float32"), (2.0, "bfloat16")])
def test_bfloat16_is_chosen_where_it_is_clearly_faster(
    speedup: float, choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_chunks, "missing_packed_bfloat16", lambda: None)
    monkeypatch.setattr(long_chunks, "bfloat16_speedup", lambda: speedup)
    assert choose_long_chunks("auto", 1000, deterministic=False) == choice


def test_the_measurement_gives_a_ratio() -> None:
    assert 0.01 < bfloat16_speedup() < 100.0


@pytest.mark.usefixtures("bare_cpu")
def test_auto_takes_nothing_that_is_missing() -> None:
    precision = choose_precision("auto", CPU, choose_long_chunks("auto", 1000, deterministic=False))
    assert precision.name == "float32"
    assert precision.linear_name == f"float32, not packed ({MISSING})"
    assert isinstance(precision.linear(torch.ones((4, 4)), None), DenseLinear)


@pytest.mark.usefixtures("bare_cpu")
def test_float16_keeps_its_storage_where_it_is_not_packed() -> None:
    precision = choose_precision("float16", CPU)
    assert isinstance(precision.linear(torch.ones((4, 4)), None), WidenedHalfLinear)
    assert precision.table(torch.ones((4, 4))).dtype == torch.float16


@pytest.mark.usefixtures("bare_cpu")
@pytest.mark.parametrize(
    "args, name",
    [
        ({"dtype": "float16"}, f"float16, widened in every product ({MISSING})"),
        ({"dtype": "bf16"}, f"bfloat16, not packed ({MISSING})"),
        (
            {"dtype": "float16", "options": {"prefill_dtype": "bfloat16"}},
            f"float16, widened in every product ({MISSING}); long chunks: bfloat16, not packed ({MISSING})",
        ),
    ],
)
def test_a_dtype_asked_for_is_computed_in_and_its_missing_form_is_said(
    tiny: TinyLlama, args: dict[str, object], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_driver: Callable[..., Driver] = Driver.open
    with caplog.at_level(logging.WARNING), open_driver(tiny.path, **args) as driver:
        assert driver.engine.pocketllm_capabilities().details["kernels"]["linear"] == name
        assert driver.run([5, 6, 7] * (LONG_ROWS // 2), max_tokens=4).reason == "length"
    assert f"has no packed form of it ({MISSING})" in caplog.text


def test_a_probe_passes_on_what_the_form_raised() -> None:
    def refuses(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        raise RuntimeError("needs avx512bw\nand more")

    assert linear_forms._failure(refuses, torch.float32) == "needs avx512bw"
    assert linear_forms._failure(DenseLinear, torch.float32) is None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the variable names instruction sets of x86")
def test_the_probe_sees_what_onednn_may_not_use() -> None:
    """The variable by which `nox -s lesser_cpu` makes this processor look like one with AVX2 alone."""
    program = "from pocketllm_torch.layers import linear_forms; print(linear_forms.missing_packed_bfloat16())"
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert "bf16 path needs the cpu support" in done.stdout
