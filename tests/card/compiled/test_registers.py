"""Which reductions use more registers than are free (32 of a thread on an H200, with all its threads at work)."""

from __future__ import annotations

import pytest

from vramcast.card.compiled.registers import registers_of_a_thread

SOFTMAX_BACKWARD = """
triton_meta={{'signature': {{'in_ptr0': '*bf16', 'out_ptr0': '*bf16', 'xnumel': 'i32'}}}}
@triton.jit
def kernel(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    r0_numel = {length}
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_ptr0 + (r0_1 + {length}*x0), r0_mask, other=0.0).to(tl.float32)
        tmp1 = libdevice.exp(tmp0)
        tl.store(out_ptr0 + (r0_1 + {length}*x0), tmp1, r0_mask)
"""
NORM = """
triton_meta={{'signature': {{'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'xnumel': 'i32'}}}}
@triton.jit
def kernel(in_ptr0, in_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    r0_numel = 768
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_ptr0 + (r0_1 + 768*x0), r0_mask, other=0.0)
        tmp1 = tl.load(in_ptr1 + (r0_1 + 768*x0), r0_mask, other=0.0)
        {added_up}
    tmp9 = tl.sum(_tmp9, 1)[:, None]
"""
WELFORD = """tmp3_mean_next = triton_helpers.welford_reduce(tmp2, tmp3_mean)
        tmp3_mean = tl.where(r0_mask, tmp3_mean_next, tmp3_mean)
        tmp3_m2 = tl.where(r0_mask, tmp3_m2_next, tmp3_m2)"""
SUM = "_tmp9 = tl.where(r0_mask, tmp8, _tmp9)"


@pytest.mark.parametrize(("length", "more"), [(50304, False), (50257, True)])
def test_rows_that_are_not_loaded_four_at_a_time_take_more(length: int, more: bool) -> None:
    """nanoGPT's vocabulary, and GPT-2's own: measured with one and with two configurations."""
    assert (registers_of_a_thread(SOFTMAX_BACKWARD.format(length=length), 1, 1024, 256) > 32) is more


@pytest.mark.parametrize(("added_up", "more"), [(WELFORD, False), (SUM, True)])
def test_mean_and_variance_of_one_turn_are_not_carried_on(added_up: str, more: bool) -> None:
    assert (registers_of_a_thread(NORM.format(added_up=added_up), 2, 1024, 256) > 32) is more
