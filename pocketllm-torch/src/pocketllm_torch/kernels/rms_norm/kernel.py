"""RMSNorm as one Triton program per row. The maths and the launch are in README.md."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # triton publishes no types
def rms_norm_kernel(x, weight, y, stride, width, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i_t = tl.program_id(0)
    o_h = tl.arange(0, BLOCK)
    inside = o_h < width
    # Everything is widened right after the load: Triton's interpreter has no bfloat16 arithmetic.
    b_x = tl.load(x + i_t * stride + o_h, mask=inside, other=0.0).to(tl.float32)
    b_w = tl.load(weight + o_h, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(b_x * b_x, axis=0) / width + eps)
    # The product with the weight follows a rounding to the output's type, as in the reference.
    b_y = (b_x * scale).to(y.dtype.element_ty).to(tl.float32) * b_w
    tl.store(y + i_t * width + o_h, b_y.to(y.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, H] with contiguous rows, weight [H] -> [T, H] in x's dtype."""
    num_rows, width = x.shape
    if x.stride(1) != 1:
        raise ValueError(f"rms_norm needs contiguous rows; the last stride is {x.stride(1)}")
    y = torch.empty((num_rows, width), dtype=x.dtype, device=x.device)
    if num_rows:
        rms_norm_kernel[(num_rows,)](
            x, weight, y, x.stride(0), width, eps, BLOCK=triton.next_power_of_2(width), num_warps=4
        )
    return y
