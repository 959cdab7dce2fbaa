"""Every storage form of a linear layer against the plain product, and the choice among them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pocketllm_torch.layers.linear import LONG_ROWS, DenseLinear, Linear, PackedHalfLinear, TwoFormLinear
from pocketllm_torch.models import long_chunks
from pocketllm_torch.models.long_chunks import bfloat16_speedup, choose_long_chunks
from pocketllm_torch.models.precision import choose_precision

CPU = torch.device("cpu")
FORMS = {
    "float32": ("float32", "float16", 1e-6),
    "float16": ("float16", "float16", 1e-3),
    "float16, long float32": ("float16", "float32", 1e-3),
    "float16, long bfloat16": ("float16", "bfloat16", 2e-2),
    "bfloat16": ("bfloat16", "float16", 2e-2),
}


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7, LONG_ROWS - 1, LONG_ROWS, LONG_ROWS + 3])
@pytest.mark.parametrize("form", FORMS)
def test_forms_equal_the_product(form: str, rows: int, with_bias: bool) -> None:
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
    assert isinstance(precision.linear(weight, None, long_chunks=False), PackedHalfLinear)
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
    monkeypatch.setattr(long_chunks, "can_pack_bfloat16", lambda: True)
    monkeypatch.setattr(long_chunks, "bfloat16_speedup", lambda: speedup)
    assert choose_long_chunks("auto", 1000, deterministic=False) == choice


def test_the_measurement_gives_a_ratio() -> None:
    assert 0.01 < bfloat16_speedup() < 100.0
