"""Matrix products and attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from vramcast.features.measure.calibration.draws import Case, Draw, tensor, through

_MOST_FLOPS = 4e12


def products(draw: Draw, count: int) -> Iterator[Case]:
    """Forward, and the two products of the backward pass: all three layouts."""
    while count > 0:
        dtype = torch.float32 if draw.chance(0.35) else draw.half()
        step = draw.of((1, 2, 4)) if draw.chance(0.2) else 8
        low = 8 if draw.chance(0.15) else 64
        rows, inner, outer = draw.size(2 * low, 40000, step), draw.size(low, 8192, step), draw.size(low, 8192, step)
        if draw.chance(0.04):
            outer = draw.size(30000, 60000, step)
        flops = 6.0 * rows * inner * outer
        if flops > (_MOST_FLOPS if dtype != torch.float32 else _MOST_FLOPS / 6) or not draw.fits(
            rows * max(inner, outer)
        ):
            continue
        count -= 1
        bias = draw.chance(0.5)
        yield Case(f"linear {rows}x{inner}x{outer} {dtype}", _linear(rows, inner, outer, dtype, bias))


def tf32_products(draw: Draw, count: int) -> Iterator[Case]:
    """FP32 with TF32 allowed, which PyTorch does not by default."""
    while count > 0:
        rows, inner, outer = (draw.size(64, most) for most in (40000, 8192, 8192))
        if 6.0 * rows * inner * outer <= _MOST_FLOPS / 2 and draw.fits(rows * max(inner, outer)):
            count -= 1
            run = _linear(rows, inner, outer, torch.float32, draw.chance(0.5))
            yield Case(f"tf32 linear {rows}x{inner}x{outer}", run, tf32=True)


def grouped_products(draw: Draw, count: int) -> Iterator[Case]:
    """Rows shared out among experts."""
    for _ in range(count):
        experts, rows = draw.of((4, 8, 16, 64)), draw.size(256, 32000, 16)
        inner, outer = draw.size(256, 4096, 64), draw.size(256, 4096, 64)
        if draw.fits(experts * inner * outer) and draw.fits(rows * max(inner, outer)):
            yield Case(f"experts {experts} of {rows}x{inner}x{outer}", _experts(experts, rows, inner, outer))


def _experts(experts: int, rows: int, inner: int, outer: int) -> Any:
    ends = [rows * (place + 1) // experts for place in range(experts)]

    def run() -> None:
        x = tensor(rows, inner, dtype=torch.bfloat16, grad=True)
        weight = tensor(experts, inner, outer, dtype=torch.bfloat16, grad=True)
        through(torch._grouped_mm(x, weight, offs=torch.tensor(ends, dtype=torch.int32, device="cuda")))

    return run


def _linear(rows: int, inner: int, outer: int, dtype: torch.dtype, bias: bool) -> Any:
    def run() -> None:
        x, weight = tensor(rows, inner, dtype=dtype, grad=True), tensor(outer, inner, dtype=dtype, grad=True)
        through(functional.linear(x, weight, tensor(outer, dtype=dtype) if bias else None))

    return run


def batched_products(draw: Draw, count: int) -> Iterator[Case]:
    while count > 0:
        dtype = draw.dtype()
        step = draw.of((1, 4)) if draw.chance(0.3) else 8
        rows, columns = draw.size(32, 1024, step), draw.size(32, 1024, step)
        depth = draw.of((16, 32, 64, 64, 80, 128)) if draw.chance(0.7) else draw.size(16, 256, step)
        batch = draw.batch(rows * columns, 18, 26)
        if not draw.fits(batch * max(rows * columns, rows * depth)) or 6.0 * batch * rows * columns * depth > 4e11:
            continue
        count -= 1
        yield Case(f"bmm {batch}x{rows}x{depth}x{columns} {dtype}", _batched(batch, rows, depth, columns, dtype))


def _batched(batch: int, rows: int, depth: int, columns: int, dtype: torch.dtype) -> Any:
    def run() -> None:
        left = tensor(batch, rows, depth, dtype=dtype, grad=True)
        right = tensor(batch, columns, depth, dtype=dtype, grad=True)
        through(torch.bmm(left, right.transpose(1, 2)))

    return run


def attentions(draw: Draw, count: int) -> Iterator[Case]:
    while count > 0:
        dtype = torch.float32 if draw.chance(0.3) else draw.half()
        rows, depth = (
            draw.size(32, 4096, 1),
            draw.of((16, 24, 32, 40, 48, 64, 64, 64, 72, 80, 88, 96, 128, 128, 160, 256)),
        )
        heads = draw.of((1, 4, 6, 8, 12, 16, 20, 32))
        batch = min(draw.batch(heads * rows * depth, 18, 25), 256)
        columns = draw.size(32, 4096, 1) if draw.chance(0.3) else rows
        causal = rows == columns and draw.chance(0.4)
        masked = not causal and draw.chance(0.2)
        dropout = 0.1 if draw.chance(0.2) else 0.0
        flops = 14.0 * batch * heads * rows * columns * depth
        if flops > (1e12 if dtype != torch.float32 else 2e11) or not draw.fits(
            batch * heads * max(rows, columns) * depth
        ):
            continue
        if masked and not draw.fits(batch * rows * columns, 16):
            continue
        count -= 1
        name = f"attention {batch}x{heads}x{rows}x{columns}x{depth} {dtype} {'causal' if causal else ''}"
        backend = draw.of(("any", "any", "efficient", "flash"))
        yield Case(name, _attention(batch, heads, rows, columns, depth, dtype, causal, masked, dropout, backend))


def _attention(
    batch: int, heads: int, rows: int, columns: int, depth: int, dtype: torch.dtype, causal: bool, masked: bool,
    dropout: float, backend: str,
) -> Any:  # fmt: skip
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {
        "any": [
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.MATH,
        ],
        "efficient": [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
        "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    }[backend]

    def run() -> None:
        query, keys, values = (
            tensor(batch, length, heads, depth, dtype=dtype, grad=True).transpose(1, 2)
            for length in (rows, columns, columns)
        )
        mask = tensor(batch, 1, rows, columns, dtype=dtype) if masked else None
        with sdpa_kernel(backends, set_priority=backend == "any"):
            y = functional.scaled_dot_product_attention(query, keys, values, mask, dropout, causal)
        through(y)

    return run
