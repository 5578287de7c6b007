"""What single ops take on the card, in the order in which an H200's allocator was asked (torch 2.11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.utils.rnn import pack_padded_sequence

import vramcast
from vramcast.base.units import MIB
from vramcast.trace.schema import ALLOC, FREE, StepTrace

CUBLAS = 32 * MIB


def events_of(prepare: Callable[[], tuple[Any, ...]], op: Callable[..., Any]) -> list[int]:
    """Allocations (positive) and frees (negative) while `op` runs; what it returns stays."""
    with vramcast.virtual_gpu("h200") as card:
        inputs = prepare()
        torch.randn(8, 8, device="cuda") @ torch.randn(8, 8, device="cuda")  # cuBLAS has its workspace
        card.mark("begin")
        kept = op(*inputs)
        card.mark("end")
        trace = card.trace()
        del kept
    return _between_marks(trace)


def _between_marks(trace: StepTrace) -> list[int]:
    rows = list(zip(trace.event_kind, trace.event_arg, strict=True))
    begin, end = (
        next(i for i, (k, a) in enumerate(rows) if k > FREE and trace.labels[a] == m) for m in ("begin", "end")
    )
    signs = {ALLOC: 1, FREE: -1}
    return [signs[kind] * trace.requested_bytes[block] for kind, block in rows[begin:end] if kind in signs]


def on_card(*size: int, dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
    return torch.randn(*size, device="cuda", dtype=dtype, **options)


def test_unfold_starts_as_large_as_its_input() -> None:
    events = events_of(lambda: (on_card(16, 32, 128, 128),), lambda x: F.unfold(x, 3, padding=1))
    assert events == [33554432, 301989888, -33554432]


def test_fold_stays_as_large_as_its_input() -> None:
    prepare = lambda: (on_card(16, 961, 2048).transpose(1, 2),)  # noqa: E731
    events = events_of(prepare, lambda x: F.fold(x, (128, 128), 8, stride=4))
    assert events == [125960192, 125960192, -125960192]


def test_the_size_of_complex_numbers_is_complex_first() -> None:
    prepare = lambda: (on_card(48, 257, 501, dtype=torch.complex64),)  # noqa: E731
    assert events_of(prepare, torch.abs) == [24721344, 49442688, -49442688]
    assert events_of(prepare, torch.angle) == [49442688, 24721344, -49442688]


def test_distances_append_norms_to_the_operands() -> None:
    events = events_of(lambda: (on_card(256, 256),), lambda x: torch.cdist(x, x))
    norms = [262144, 1024, -262144, 1024]
    assert events == [
        *norms,
        *norms,
        262144,
        264192,
        -1024,
        -1024,
        -262144,
        264192,
        -1024,
        -1024,
        262144,
        -264192,
        -264192,
    ]


def test_gradients_of_other_distances_are_written_out_by_pair() -> None:
    def prepare() -> tuple[Any, ...]:
        x, y = on_card(256, 256, requires_grad=True), on_card(512, 256)
        return x, torch.cdist(x, y, p=1).sum()

    events = events_of(prepare, lambda x, loss: torch.autograd.grad(loss, x))
    at = events.index(134217728)
    assert events[at - 1 : at + 2] == [262144, 134217728, -134217728]


def test_packing_copies_steps_of_one_batch_size_together() -> None:
    prepare = lambda: (on_card(3, 10, 1024), torch.tensor([10, 10, 6]))  # noqa: E731
    events = events_of(prepare, lambda x, lengths: pack_padded_sequence(x, lengths, batch_first=True))
    row = 1024 * 4
    assert events[:5] == [18 * row, 8 * row, 26 * row, -8 * row, -18 * row]


def test_a_sample_from_a_distribution_divides_it_by_random_numbers() -> None:
    events = events_of(lambda: (on_card(16, 50257).softmax(-1),), lambda p: torch.multinomial(p, 1))
    assert events == [128, 3216448, -3216448]


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="torch is too old for grouped products")
def test_grouped_products_of_fp32_use_cublas() -> None:
    """On the card transformers' experts do so under autocast, whose weights stay in fp32."""

    def prepare() -> tuple[Any, ...]:
        return on_card(64, 96), on_card(4, 96, 33), torch.tensor([16, 32, 48, 64], dtype=torch.int32, device="cuda")

    events = events_of(prepare, lambda x, w, ends: torch._grouped_mm(x, w, offs=ends))
    assert events == [(63 * 36 + 33) * 4]  # rows begin at multiples of 16 bytes


def test_zeros_of_forward_mode_take_no_memory() -> None:
    def prepare() -> tuple[Any, ...]:
        return on_card(1024, 1024), on_card(1024, 1024)

    def directional(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.func.jvp(lambda v: F.linear(v, w, torch.zeros(1024, device="cuda")), (x,), (x,))

    events = events_of(prepare, directional)
    assert sum(event for event in events if event > 0) < 7 * 4 * MIB


def test_lengths_of_ctc_may_be_on_the_host() -> None:
    with vramcast.virtual_gpu("h200"):
        x, targets = on_card(50, 4, 20, requires_grad=True), torch.randint(1, 20, (4, 10), device="cuda")
        loss = nn.CTCLoss()(x.log_softmax(-1), targets, torch.full((4,), 50), torch.tensor([3, 5, 10, 7]))
        loss.backward()
        assert loss.is_cuda
        assert x.grad is not None


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: F.multi_margin_loss(x, torch.randint(0, 16, (8,), device="cuda")),
        lambda x: F.multilabel_margin_loss(x, torch.randint(-1, 15, (8, 16), device="cuda")),
        lambda x: F.fractional_max_pool3d(x.view(2, 1, 4, 4, 4), 2, output_size=2).sum(),
    ],
)
def test_gradients_that_have_no_meta_kernel(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with vramcast.virtual_gpu("h200"):
        x = on_card(8, 16, requires_grad=True)
        loss(x).backward()
        assert x.grad is not None
        assert x.grad.shape == (8, 16)


def test_the_forward_derivative_of_a_gated_unit() -> None:
    events = events_of(lambda: (on_card(1024, 1024),), lambda x: torch.func.jvp(F.glu, (x,), (x,)))
    assert events == [2 * MIB, 2 * MIB]


def test_a_subclass_of_tensor_without_a_constructor() -> None:
    with vramcast.virtual_gpu("h200"):
        q, k = (on_card(1, 2, n, 64, dtype=torch.bfloat16, requires_grad=True) for n in (256, 1024))
        F.scaled_dot_product_attention(q, k, k, attn_mask=causal_lower_right(256, 1024)).sum().backward()
        assert q.grad is not None


def test_evaluation_of_an_encoder_takes_what_the_fused_path_does() -> None:
    """A layer of a 6-layer encoder of width 512 on 64 sequences of 384 tokens, in evaluation."""

    def prepare() -> tuple[Any, ...]:
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True).cuda().eval()
        return layer, on_card(64, 384, 512)

    with torch.no_grad():
        events = events_of(prepare, lambda layer, x: layer(x))
    rows, wide, hidden, statistics = 50331648, 150994944, 201326592, 98304
    norm = [rows, statistics, statistics, -statistics, -statistics, -rows]
    large = [event for event in events if abs(event) not in (1 * MIB, CUBLAS)]
    assert large == [wide, rows, rows, -rows, -wide, *norm, hidden, rows, -hidden, *norm, -rows]


def test_an_encoder_drops_the_padding_it_is_told_of() -> None:
    def prepare() -> tuple[Any, ...]:
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 1).cuda().eval()
        padding = torch.zeros(64, 384, dtype=torch.bool, device="cuda")
        padding[:, 300:] = True
        return encoder, on_card(64, 384, 512), padding

    with torch.no_grad():
        events = events_of(prepare, lambda encoder, x, padding: encoder(x, src_key_padding_mask=padding))
    assert max(events) == 64 * 300 * 2048 * 4
    assert 64 * 300 * 512 * 4 in events


@pytest.mark.parametrize(
    ("elements", "counting", "selecting"),
    [(2_004, 1, 1_023), (16_384, 21_503, 1_023), (242_991, 21_503, 1_279), (971_964, 21_503, 2_815)],
)
def test_places_of_a_mask_are_counted_and_selected(elements: int, counting: int, selecting: int) -> None:
    def prepare() -> tuple[torch.Tensor]:
        mask = torch.zeros(elements, dtype=torch.bool)
        mask[:8] = True
        return (mask.cuda(),)

    assert events_of(prepare, torch.nonzero) == [4, counting, -counting, 64, selecting, -selecting, -4]


# What follows was read off PyTorch's source, not measured.


def test_a_median_sorts_first() -> None:
    sort = events_of(lambda: (on_card(1000, 1000),), lambda x: x.flatten().sort())
    median = events_of(lambda: (on_card(1000, 1000),), lambda x: x.median())
    assert median == [*sort, -8_000_000, 4, -4_000_000]
    nanmedian = events_of(lambda: (on_card(1000, 1000),), lambda x: x.nanmedian())
    assert nanmedian == [*sort, -8_000_000, 1_000_000, 8, -8, -1_000_000, 4, -4_000_000]


def test_a_cholesky_solution_copies_the_factor() -> None:
    events = events_of(lambda: (on_card(256, 8), on_card(256, 256)), torch.cholesky_solve)
    assert events == [4, 256 * 8 * 4, 256 * 256 * 4, -4, -256 * 256 * 4]


def test_deterministic_flash_attention_keeps_a_sum_for_each_block() -> None:
    def backward(q: torch.Tensor) -> Any:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = F.scaled_dot_product_attention(q, q, q)
        torch.use_deterministic_algorithms(True)
        try:
            return torch.autograd.grad(out, q, torch.ones_like(out))
        finally:
            torch.use_deterministic_algorithms(False)

    prepare = lambda: (on_card(2, 4, 1024, 64, dtype=torch.bfloat16, requires_grad=True),)  # noqa: E731
    sums = 4 * 2 * 4 * 1024 * 64
    assert sums * 17 in events_of(prepare, backward)  # 132 multiprocessors for 8 heads


def test_a_running_maximum_takes_a_dense_input() -> None:
    """Read off ScanUtils.cuh: values and indices, then a copy of the input while the kernel runs."""
    assert events_of(lambda: (on_card(512, 1024),), lambda x: torch.cummax(x, 0)) == [2097152, 4194304]
    transposed = lambda: (on_card(512, 1024).t(),)  # noqa: E731
    assert events_of(transposed, lambda x: torch.cummin(x, 0)) == [2097152, 4194304, 2097152, -2097152]
    assert events_of(transposed, lambda x: torch.logcumsumexp(x, 0)) == [2097152, 2097152, -2097152]


def test_indices_of_unlike_strides_are_copied() -> None:
    prepare = lambda: (  # noqa: E731
        on_card(4, 1000), torch.arange(4, device="cuda")[:, None], torch.zeros(4, 500, dtype=torch.int64, device="cuda")
    )  # fmt: skip
    # As seen on the card in torchvision's region proposals.
    assert events_of(prepare, lambda x, rows, columns: x[rows, columns]) == [16_000, 8_000, -16_000]
    assert events_of(prepare, lambda x, rows, columns: x[rows.expand(4, 500).contiguous(), columns]) == [
        16_000, 8_000, -16_000,
    ]  # fmt: skip
    assert events_of(prepare, lambda x, rows, columns: x[columns, columns]) == [8_000]


def test_a_product_of_eight_bits_writes_into_what_it_is_given() -> None:
    """How compiled code calls it; without `out=` it makes a result of the dtype asked for."""

    def prepare() -> tuple[Any, ...]:
        left = torch.empty(1024, 512, device="cuda").to(torch.float8_e4m3fn)
        right = torch.empty(256, 512, device="cuda").to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        return left, right, one, torch.empty(1024, 256, dtype=torch.bfloat16, device="cuda")

    def into(left: torch.Tensor, right: torch.Tensor, one: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16, out=out)

    def made(left: torch.Tensor, right: torch.Tensor, one: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16)

    assert 1024 * 256 * 2 not in events_of(prepare, into)
    assert events_of(prepare, made)[0] == 1024 * 256 * 2
